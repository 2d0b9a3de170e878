"""Adds up the sales of each region: reads the table that it is given, writes totals.json."""

import csv
import json
import sys

totals = {}
with open(sys.argv[1], newline="") as table:
    for row in csv.DictReader(table):
        totals[row["region"]] = totals.get(row["region"], 0) + int(row["amount"])

with open("totals.json", "w") as result:
    json.dump(totals, result, indent=2, sort_keys=True)
print(len(totals), "regions,", sum(totals.values()), "in all")
