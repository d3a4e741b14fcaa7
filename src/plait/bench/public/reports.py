"""The figures of three public reports. docs/public.md says what they are of."""

PACKED = {  # L -> the time of a packed over that of a padded LSTM, in %: forward, backward
    10: (526.90, 277.19),
    20: (739.90, 460.88),
    50: (1162.63, 381.99),
    100: (1506.77, 395.81),
    200: (2300.32, 590.51),
    500: (5967.95, 1715.68),
    1000: (9583.25, 2793.80),
    2000: (10983.58, 5242.34),
    4000: (11384.78, 8090.40),
}


OTHER: dict[str, dict[str, float | None]] = {  # ms by what is timed, None if not given
    "4154": {"step": 10.2},  # after its change
    "81634": {"forward": 200e3, "step": None},
}
