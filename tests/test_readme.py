"""The README's promises: its commands are the ones that CI runs, its tree names every file."""

from readme import (
    PROBES,
    README,
    ROOT,
    ablation,
    bandwidth,
    between,
    blocks,
    bounds,
    commands,
    concurrency,
    cycles,
    dates,
    deadlines,
    determinism,
    elsewhere,
    embedding,
    events,
    figures,
    gaps,
    good,
    h200_gaps,
    heard,
    heard_policies,
    links,
    microphone,
    page,
    perfect,
    planning,
    probed,
    qwen_gaps,
    result,
    self_check,
    side_by_side,
    simulating,
    stages,
    starts,
    sums,
    transport,
    underruns,
    voices,
)


def test_the_embedding_program_is_at_most_ten_lines() -> None:
    assert len([line for line in embedding().splitlines() if line]) <= 10


def test_ci_runs_the_test_command() -> None:
    (command,) = [block for block in blocks() if "pytest" in block and "pip install" in block]
    assert command in (ROOT / ".ci" / "run").read_text().splitlines()


def test_the_recipe_for_the_second_model_is_at_most_ten_lines() -> None:
    (recipe,) = [block for block in blocks() if "hf download" in block]
    assert len([line for line in recipe.splitlines() if line]) <= 10


def test_every_file_is_in_the_tree() -> None:
    (tree,) = [block for block in blocks() if block.startswith("pyproject.toml")]
    for folder in ("engine", "agent"):
        for file in (ROOT / folder).glob("*.py"):
            assert file.name in tree or file.name == "__init__.py", f"{folder}/{file.name} is not in the README's tree"


def test_every_event_is_named() -> None:
    assert [row for row in README.splitlines() if row in events()] == events()


def test_every_figure_comes_from_a_benchmark() -> None:
    cpu = (*figures(), *deadlines(), planning(), simulating(), *gaps())
    talk = (*links(), *elsewhere(), *transport(), *microphone(), *probed(), perfect())
    gpu = (*ablation(), *concurrency(), *stages(), *h200_gaps(), *voices())
    sizes = concurrency("h200-qwen3-tts-concurrency"), concurrency("h200-qwen3-tts-0.6b-concurrency")
    qwen = (*side_by_side(), *sizes[0], *sizes[1], *stages("h200-qwen3-tts-stages"), *qwen_gaps())
    for row in (*cpu, *talk, *gpu, *qwen):
        assert row in README.splitlines(), f"the README lacks this row of the results: {row}"
    for words in (
        bounds(),
        underruns(),
        underruns("h200-qwen3-tts-concurrency"),
        bandwidth(),
        starts(),
        between(),
        determinism(),
        heard(),
        cycles(),
        sums(),
        page(),
        heard_policies(),
        self_check(),
        *dates(),
    ):
        assert words in " ".join(README.split()), f"the README lacks these words of the results: {words}"


def test_published_probes_found_nothing_and_were_made_as_the_readme_says() -> None:
    for name in PROBES:
        assert good(name)["command"] in commands()
    assert result("probe-perfect")["command"] in commands()
    for name in ("probe-agent", "probe-soak"):
        page = (ROOT / "tests" / "bench" / "results" / f"{name}.html").read_text()
        assert "nothing was found" in page and good(name)["command"] in page


def test_published_probes_reach_what_was_asked_of_them() -> None:
    agent, perfect = good("probe-agent"), result("probe-perfect")
    assert len(agent["trials"]) >= 200 and agent["seconds"] < 1800
    assert (perfect["trials"], perfect["parallel"], perfect["found"]) == (200, 8, 0)
    assert perfect["seconds"] < 600 and perfect["stop_error_ms"]["max"] <= 10
    soak = good("probe-soak")["load"]
    assert soak["seconds"] >= 3600 and (soak["peers"], soak["talking"], soak["gaps_a_call"]) == (4, 1, 0)
    assert good("probe-kill")["load"]["killed"]["calls"] == 4
    assert good("probe-cycles")["load"]["cycles"]["cycles"] == 500
    assert result("probe-neteq")["all"]["stop_error_ms"]["max"] <= 10
