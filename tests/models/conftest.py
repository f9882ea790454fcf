from hypothesis import Phase, settings

# That a bug is found is enough, however long the way to it; the search ends with it. The rare ones
# take more than a thousand examples, of which test_turns.py tries half as many as these.
settings.register_profile(
    "mutants",
    settings.get_profile("faults"),
    max_examples=6000,
    phases=(Phase.explicit, Phase.generate),
)
