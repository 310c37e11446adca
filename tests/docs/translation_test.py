"""README.zh.md says what README.md says: the same commands and programs in the same order, the same sections, and links that lead somewhere."""
import pathlib
import re
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]


def blocks(name):
    return re.findall(r"^```(\w+)\n(.*?)^```", (ROOT / name).read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


def sections(name):
    return re.findall(r"^(#+) ", re.sub(r"^```.*?^```", "", (ROOT / name).read_text(encoding="utf-8"), flags=re.M | re.S), re.MULTILINE)


class Translation(unittest.TestCase):
    def test_the_same_commands_and_programs(self):
        self.assertEqual(blocks("README.zh.md"), blocks("README.md"))

    def test_the_same_sections(self):
        self.assertEqual(sections("README.zh.md"), sections("README.md"))

    def test_links_lead_somewhere(self):
        for name in ("README.md", "README.zh.md", *(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md"))):
            folder = (ROOT / name).parent
            text = re.sub(r"^```.*?^```", "", (ROOT / name).read_text(encoding="utf-8"), flags=re.M | re.S)
            for link in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", text):
                if "://" not in link:
                    self.assertTrue((folder / link).exists(), f"{name}: {link}")


if __name__ == "__main__":
    unittest.main()
