#!/usr/bin/env python3
"""missing_packages.py CMAKE SOURCE_DIR: where a package is missing, the build says which command installs it."""
import subprocess
import sys
import tempfile

cmake, source = sys.argv[1:]
failures = 0
for package, debian in {"nlohmann_json": "nlohmann-json3-dev", "fmt": "libfmt-dev", "CLI11": "libcli11-dev"}.items():
    with tempfile.TemporaryDirectory() as folder:
        command = [cmake, "-S", source, "-B", folder, "-DHEED_BUILD_TESTS=OFF", "-DHEED_BUILD_CLI=ON",
                   "-DHEED_INSTRUCTION_SETS=portable", f"-DCMAKE_DISABLE_FIND_PACKAGE_{package}=ON"]
        result = subprocess.run(command, capture_output=True, text=True)
    said = " ".join(result.stderr.split())
    expected = f"sudo apt-get install {debian}"
    if result.returncode == 0 or expected not in said:
        failures += 1
        print(f"without {package}: expected an error with '{expected}', got {result.returncode}: {said[:400]}")
print(f"3 packages, {failures} wrong")
sys.exit(1 if failures else 0)
