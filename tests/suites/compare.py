"""Prints what two reports in JUnit's XML have passed, and every test that one of them alone has passed: compare.py SUITE ONE OTHER."""

import sys
from xml.etree import ElementTree


def passed(element, path=()):
    """The tests below `element` by their names, within those of the suites that they are in, and whether each passed."""
    cases = {}
    for child in element:
        if child.tag == "testsuite":
            cases.update(passed(child, (*path, child.get("name"))))
        elif child.tag == "testcase":
            bad = any(child.find(end) is not None for end in ("failure", "error", "skipped"))
            # pytest's class comes after the folders; node has none.
            within = child.get("classname").split(".", 3)[3:]
            cases[" / ".join((*path, *within, child.get("name")))] = not bad
    return cases


suite, *paths = sys.argv[1:]
one, other = (passed(ElementTree.parse(path).getroot()) for path in paths)
print(f"{suite}: presim {sum(one.values())}, anvil {sum(other.values())}, of {len(one)}")
for tests, rest, title in ((one, other, "presim"), (other, one, "anvil")):
    print(f"{title} alone:")
    for case in sorted(tests):
        if tests[case] and not rest.get(case):
            print(f"  {case}")
