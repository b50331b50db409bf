"""Prints what two reports of pytest (JUnit's XML) have passed, and every test that one of them alone has passed."""

import sys
from xml.etree import ElementTree


def passed(path):
    cases = {}
    for case in ElementTree.parse(path).iter("testcase"):
        bad = case.find("failure") is not None or case.find("error") is not None
        cases[f"{case.get('classname').split('.', 3)[-1]} {case.get('name')}"] = not bad and case.find("skipped") is None
    return cases


one, other = (passed(path) for path in sys.argv[1:3])
print(f"web3.py: presim {sum(one.values())}, anvil {sum(other.values())}, of {len(one)}")
for name, title in ((one, "presim"), (other, "anvil")):
    rest = other if name is one else one
    print(f"{title} alone:")
    for case in sorted(name):
        if name[case] and not rest.get(case):
            print(f"  {case}")
