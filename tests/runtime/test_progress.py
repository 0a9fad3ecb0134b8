from pairstill.runtime.progress import duration, progress


def test_durations_read_well():
    assert [duration(s) for s in (2.34, 42, 185, 7800)] == ["2.3 s", "42 s", "3 min 05 s", "2 h 10 min"]


def test_progress_in_a_log_ends_with_a_line(capsys):
    with progress("work", 3) as advance:
        advance(2)
        advance(1, note="well")
    assert "work: 3/3 in" in capsys.readouterr().err
