"""Counts the tests of one Bazel run: count_tests.py EVENTS STATUS prints "PASSED FAILED".

EVENTS is what --build_event_json_file wrote, STATUS is Bazel's exit status. A test target is failed unless
its summary says that it passed: also when it did not build. A run that failed without a failed test (a
package that does not load, a library that does not compile) counts as one failure, so that it is not missed.
"""

import json
import sys


def count(lines, status):
    tests = set()
    passed = set()
    for line in lines:
        try:
            event = json.loads(line)
        except ValueError:
            continue  # the last line, when Bazel was killed
        identity = event.get("id", {})
        configured = identity.get("targetConfigured")
        if configured and "testSize" in event.get("configured", {}):
            tests.add(configured["label"])
        summary = identity.get("testSummary")
        if summary:
            tests.add(summary["label"])
            if event.get("testSummary", {}).get("overallStatus") in ("PASSED", "FLAKY"):
                passed.add(summary["label"])
    return len(passed), len(tests - passed), status


def main():
    try:
        with open(sys.argv[1], encoding="utf-8") as events:
            passed, failed, status = count(events, int(sys.argv[2]))
    except FileNotFoundError:
        passed, failed, status = 0, 0, int(sys.argv[2])
    if status != 0 and failed == 0:
        failed = 1
    print(passed, failed)


if __name__ == "__main__":
    main()
