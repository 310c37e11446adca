"""The page's modules, checked by TypeScript from the types in their comments. Needs tsc: one that is installed, or what
npm gets from its registry; where neither is to be had, the test says so and is skipped."""
import os
import shutil
import subprocess
import sys
import tempfile

VERSION = "5.9.3"  # the same complaints everywhere
OPTIONS = ["--noEmit", "--allowJs", "--checkJs", "--strict", "--noUnusedLocals", "--noImplicitReturns", "--noFallthroughCasesInSwitch",
           "--target", "es2022", "--module", "es2022", "--moduleResolution", "bundler", "--lib", "es2023,dom,dom.iterable"]


def find_compiler():
    """As a command; nothing where there is none."""
    if shutil.which("tsc"):
        return ["tsc"]
    if not shutil.which("npm") or not shutil.which("node"):
        return None
    folder = os.environ.get("HEED_TYPESCRIPT") or os.path.join(tempfile.gettempdir(), f"heed-typescript-{os.getuid()}")
    script = os.path.join(folder, "node_modules", "typescript", "bin", "tsc")
    if not os.path.exists(script):
        os.makedirs(folder, exist_ok=True)
        try:
            subprocess.run(["npm", "install", "--no-audit", "--no-fund", "--ignore-scripts", "--prefix", folder, f"typescript@{VERSION}"],
                           stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=120, check=False)
        except subprocess.TimeoutExpired:
            pass
    return ["node", script] if os.path.exists(script) else None


def check(compiler, files):
    result = subprocess.run([*compiler, *OPTIONS, *files], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=300, check=False)
    return result.returncode, result.stdout


def main():
    compiler = find_compiler()
    if not compiler:
        print("skipped: no tsc here and npm gets none, so the page's types are not checked")
        return 77
    page = os.path.join(os.environ["HEED_SOURCE_DIR"], "apps", "web", "page")
    code, text = check(compiler, [os.path.join(page, name) for name in sorted(os.listdir(page)) if name.endswith(".js")])
    print(text, end="")
    with tempfile.TemporaryDirectory() as folder:  # and it is a check that can fail
        wrong = os.path.join(folder, "wrong.js")
        with open(wrong, "w") as file:
            file.write("// @ts-check\n/** @param {number} x */\nexport const f = (x) => x + 1;\nf('one');\n")
        if check(compiler, [wrong])[0] == 0:
            print("the compiler lets a text pass for a number")
            return 1
    return code


if __name__ == "__main__":
    sys.exit(main())
