import re

from pairstill.show.report.charts import ACROSS, UPWARDS, Scale, lines, stems, ticks


def test_ticks_are_round_and_hold_all_values():
    assert ticks(0, 10) == [0, 2, 4, 6, 8, 10]
    assert ticks(0, 0.031) == [0, 0.01, 0.02, 0.03, 0.04]
    for low, high in ((3, 3), (-1.3, 7.9), (0, 1e6), (1e-5, 2e-5)):
        marks = ticks(low, high)
        assert marks[0] <= low and marks[-1] >= high and 3 <= len(marks) <= 12


def test_a_line_goes_through_its_points():
    chart = lines({"a <b>": [(0, 0), (10, 5)], "c": [(0, 5), (5, 10)]}, "x", "y")
    paths = [
        [tuple(map(float, point.split(","))) for point in path.split()]
        for path in re.findall('points="([^"]+)"', chart)
    ]
    x, y = Scale(0, 10, *ACROSS), Scale(0, 10, *UPWARDS)
    assert paths == [[(x(0), y(0)), (x(10), y(5))], [(x(0), y(5)), (x(5), y(10))]]
    assert "a &lt;b&gt;" in chart and "<b>" not in chart
    assert lines({}, "x", "y") == "" == stems([], "x", "y")
    assert stems([("first", 0.5, 0.1), ("second", 1.0, 0.0)], "x", "y").count("<circle") == 2
