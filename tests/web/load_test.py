"""A short version of load.py: the same clients, fewer and for seconds."""
import unittest

import load


class ManyClients(unittest.TestCase):
    def test_it_keeps_answering_and_gives_everything_back(self):
        for line in load.run(clients=120, seconds=4, fuzz=1500):
            print(line)


if __name__ == "__main__":
    unittest.main()
