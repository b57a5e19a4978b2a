"""The floor of a first load: the heads of all task files parsed by libyaml, and nothing else."""

import os
import sys

import yaml

count = 0
for entry in os.scandir(sys.argv[1]):
    with open(entry.path, encoding="utf-8") as file:
        head = file.read().split("---\n", 2)[1]
    count += bool(yaml.load(head, Loader=yaml.CSafeLoader)["id"])
sys.exit(count != int(sys.argv[2]))
