"""Hostile flags, configs and schemas: texts that ask for too much, or for what cannot be."""

DIGITS = "7" * 5000
GOOD = {"data.name": "'digits'", "budget.noise": "2.0", "budget.steps": "4", "budget.batch_size": "16"}
RUN = ["--data", "digits", "--noise", "2", "--steps", "4", "--batch-size", "16", "--out", "run"]


def flags():
    """Arguments by what is wrong with them."""
    plan = ["plan", "--examples", "1000", "--batch-size", "10", "--steps", "10"]
    wild = "1e400", "1e308", "1e-308", "1e-300", "-1", "0", "nan", "inf", "-inf", "", "ε", "0x10", "9" * 400, "\udcff"
    cases = {f"plan, noise {value[:9]}": [*plan, "--noise", value] for value in wild}
    cases |= {f"plan, epsilon {value[:9]}": [*plan, "--epsilon", value] for value in wild}
    cases |= {f"plan, delta {value[:9]}": [*plan, "--noise", "1", "--delta", value] for value in (*wild[:11], "1")}
    huge = "-1", "0", DIGITS, "1" + "0" * 18, "1.5", "1e3", "\udc80"
    for name in ("examples", "batch-size", "steps", "group"):
        base = ["plan", "--noise", "1", "--examples", "1000", "--batch-size", "10", "--steps", "10"]
        cases |= {f"plan, {name} {value[:9]}": [*base, f"--{name}", value] for value in huge}
    cases["plan, group of a million"] = [*plan, "--noise", "1", "--group", "1000000"]
    cases["plan, epochs 1e300"] = ["plan", "--examples", "10", "--batch-size", "1", "--noise", "1", "--epochs", "1e300"]
    cases["plan, unit of controls"] = [*plan, "--noise", "1", "--unit", "a\x1b[31mb"]
    cases["plan, unit of a megabyte"] = [*plan, "--noise", "1", "--unit", "u" * 100_000]
    cases["plan, an unknown sampling"] = [*plan, "--noise", "1", "--sampling", "p" * 100_000]
    cases["plan, a picture in no format"] = [*plan, "--noise", "1", "--plot", "a.exe"]
    cases["plan, a picture nowhere"] = [*plan, "--noise", "1", "--plot", "no/such/folder/a.svg"]
    cases["plan, out is a folder"] = [*plan, "--noise", "1", "--out", "."]
    cases["plan, out is full"] = [*plan, "--noise", "1", "--out", "/dev/full"]
    cases["plan, out is nowhere"] = [*plan, "--noise", "1", "--out", "no/such/folder/a.toml"]
    cases["plan, out has a name of 5,000 letters"] = [*plan, "--noise", "1", "--out", "n" * 5000]
    cases["plan, a paper there is not"] = ["plan", "--paper", "\x1b]0;title\x07"]
    check = ["check", "--noise", "1", "--steps", "2", "--batch-size", "10"]
    sizes = ["--examples", "100", "--classes", "10"]
    shapes = ("1000000000", "1000000000,1000000000", "-1", "0", "1,,2", DIGITS, "1," * 200 + "1", "ε", "1;2", "\udcff")
    cases |= {f"check, shape {s[:12]}": [*check, *sizes, "--shape", s] for s in shapes}
    cases["check, a billion classes"] = [*check, "--shape", "8", "--examples", "100", "--classes", "1000000000"]
    cases["check, sequences of a billion"] = [*check, "--examples", "100", "--sequences", "1000000000,1000000000"]
    cases["check, sequences of three"] = [*check, "--examples", "100", "--sequences", "1,2,3"]
    cases["check, seed below 0"] = [*check, *sizes, "--shape", "8", "--seed", "-1"]
    cases["check, no runs"] = [*check, *sizes, "--shape", "8", "--runs", "0"]
    cases["check, level 2"] = [*check, *sizes, "--shape", "8", "--level", "2"]
    train = ["train", *RUN]
    settings = {
        "hidden of 10^5 layers": f"model.settings.hidden=[{','.join('8' * 100_000)}]",
        "hidden of 10^7 units": "model.settings.hidden=[10000000]",
        "two layers of 10^6 units": "model.settings.hidden=[1000000, 1000000]",
        "hidden of 5,000 digits": f"model.settings.hidden={DIGITS}",
        "hidden below 0": "model.settings.hidden=[-1]",
        "an activation of controls": "model.settings.activation='\x1b[2J'",
        "a value nested 3,000 deep": "model.settings.hidden=" + "[" * 3000 + "]" * 3000,
        "a clipping norm of 1e308": "method.settings.norm=1e308",
        "a clipping norm of 1e-308": "method.settings.norm=1e-308",
        "a clipping norm of text": "method.settings.norm='one'",
        "a key of 3,000 dots": "model" + ".a" * 3000 + "=1",
        "a key of nothing": ".=1",
        "no value": "model.name=",
        "a learning rate of 1e300": "optimizer.learning_rate=1e300",
        "a learning rate nan": "optimizer.learning_rate=nan",
        "betas of text": "optimizer.settings.betas=['a']",
        "momentum 1e308": "optimizer.momentum=1e308",
        "a device of controls": 'run.device="\\u001b[31m"',
        "a device there is not": "run.device='cuda:99'",
        "a device of 100,000 letters": f"run.device='{'d' * 100_000}'",
        "a model of NUL": 'model.name="a\\u0000b"',
        "a model that is a module's path": "model.name='/etc/passwd:main'",
        "a module that is not there": "model.name='no.such.module:f'",
        "data of NUL": 'data.name="a\\u0000.npz"',
        "data of NUL in a table": 'data.name="a\\u0000.csv"',
        "a folder of NUL": 'data.folder="\\u0000"',
        "data of 5,000 letters": f"data.name='{'n' * 5000}.npz'",
        "data of a folder of 5,000 letters": f"data.name='{'n' * 5000}'",
        "data at /dev/zero": "data.name='/dev/zero'",
        "a function that is not there": "data.name='os:no_such_function'",
        "a function that ends the process": "data.name='sys:exit'",
        "a callback that ends the process": "run.callbacks=['sys:exit']",
        "a callback that is none": "run.callbacks=['builtins:list']",
        "a network that ends the process": "model.name='sys:exit'",
        "a stage that is a function": "stages.bound={type='os:system'}",
        "a function that wants more": "data.name='os:rename'",
        "limit 0": "data.settings.limit=0",
        "canaries of a billion": "audit.canaries=1000000000",
        "copies of a billion": "augmentation.copies=1000000000",
        "a shift of a billion": "augmentation.shift=1000000000",
        "a warm-up of 2": "schedule.warmup=2.0",
        "checkpoints every nan": "run.checkpoint_every=nan",
        "a seed of 5,000 digits": f"run.seed={DIGITS}",
        "a reserve of a billion": "run.reserve=1000000000",
        "a ledger at /dev/full": "run.ledger='/dev/full'",
        "a ledger of NUL": 'run.ledger="\\u0000"',
        "a ledger in /proc": "run.ledger='/proc/ledger.jsonl'",
        "no section": "hidden=1",
        "a section there is not": "modell.name=1",
        "a value of controls": "modell.name='\x1b[31m'",
        "test_fraction 1": "data.test_fraction=1.0",
        "validation 7": "data.validation=7.0",
        "chunk of 0": "run.chunk=0",
        "memory nan": "run.memory=nan",
        "decay 1": "averaging.decay=1.0",
    }
    cases |= {f"train, {name}": [*train, "--set", value] for name, value in settings.items()}
    cases["train, out has a name of 5,000 letters"] = [*train[:-1], "o" * 5000]
    cases["train, out is a device"] = [*train[:-1], "/dev/full"]
    cases["train, out is below a device"] = [*train[:-1], "/dev/null/run"]
    cases["train, out in /proc"] = [*train[:-1], "/proc/run"]
    cases["train, config is a device"] = ["train", "/dev/zero", "--out", "run"]
    cases["train, config is /dev/null"] = ["train", "/dev/null", "--out", "run"]
    cases["train, config has a name of 5,000 letters"] = ["train", "c" * 5000, "--out", "run"]
    cases["train, config is no UTF-8 name"] = ["train", "\udcff\udcfe.toml", "--out", "run"]
    for command in ("resume", "report", "audit", "verify"):
        places = (
            "/dev/null",
            "/dev/zero",
            "/dev/full",
            "n" * 5000,
            "\udcff\udcfe",
            "\x1b[31mred",
            "/proc/self/mem",
            "/",
        )
        cases |= {f"{command} {place[:12]}": [command, place] for place in places}
    cases["verify, a key at /dev/zero"] = ["verify", "nowhere", "--key", "/dev/zero"]
    cases["verify, an anchor of a megabyte"] = ["verify", "nowhere", "--anchor", "a" * 100_000]
    cases["reproduce, no such paper"] = ["reproduce", "p" * 100_000]
    cases["a command of 100,000 letters"] = ["c" * 100_000]
    cases["an option of 100,000 letters"] = ["train", "--" + "o" * 100_000]
    cases["a command that is no UTF-8"] = ["\udcff"]
    cases["a command of controls"] = ["\x1b[31m\x07"]
    cases["an option of controls"] = ["train", "--\x1b[31m\x07"]
    cases["federate, a billion users"] = ["federate", *RUN, "--users", "1000000000"]
    cases["federate, shards of a billion"] = ["federate", *RUN, "--users", "5", "--shards", "1000000000"]
    cases["federate, alpha 1e-300"] = [
        "federate",
        *RUN,
        "--users",
        "5",
        "--partition",
        "dirichlet",
        "--alpha",
        "1e-300",
    ]
    return cases


def configs():
    """Files of a run by what is wrong with them."""
    good = "".join(f"{name} = {value}\n" for name, value in GOOD.items())
    texts = {
        "arrays 3,000 deep": good + "model.settings.hidden = " + "[" * 3000 + "]" * 3000,
        "tables 3,000 deep": good + "model.settings = " + "{a = " * 3000 + "1" + "}" * 3000,
        "dotted keys 3,000 deep": good + "model.settings" + ".a" * 3000 + " = 1",
        "a table 3,000 deep": good + "[model.settings" + ".a" * 3000 + "]\nb = 1",
        "dotted keys 200,000 deep": good + "model.settings" + ".a" * 200_000 + " = 1",
        "quoted keys 3,000 deep": good + "model.settings" + ".'a b'" * 3000 + " = 1",
        "arrays 90 deep": good + "model.settings.hidden = " + "[" * 90 + "]" * 90,
        "tables 90 deep": good + "model.settings" + ".a" * 90 + " = 1",
        "an integer of 5,000 digits": good + f"run.seed = {DIGITS}",
        "a hexadecimal of 5,000 digits": good + f"run.seed = 0x{DIGITS}",
        "a binary of 100,000 digits": good + f"run.seed = 0b{'1' * 100_000}",
        "a float of 5,000 digits": good + f"method.settings.norm = {DIGITS}.0",
        "an integer of 4,000 digits": good + f"run.seed = {'7' * 4000}",
        "an integer above 64 bits": good + "run.seed = 18446744073709551616",
        "ten megabytes of a comment": "#" + "x" * 10_000_000 + "\n" + good,
        "ten megabytes of lines": "\n" * 10_000_000 + good,
        "a hundred thousand keys": good + "\n".join(f"model.settings.k{i} = 1" for i in range(100_000)),
        "a hundred thousand tables": good + "\n".join(f"[t{i}]" for i in range(100_000)),
        "an array of 10^5 tables": good + "[[model.settings.a]]\n" * 100_000,
        "a string of a megabyte": good + f"model.name = '{'m' * 1_000_000}'",
        "a name of controls": good + 'model.name = "\\u001b[31m\\u0007"',
        "a name from right to left": good + 'model.name = "\\u202egnp.exe"',
        "data of a NUL": good.replace("'digits'", '"a\\u0000b"'),
        "a ledger of a NUL": good + 'run.ledger = "a\\u0000b"',
        "a schema of a NUL": good.replace("'digits'", "'t.csv'") + 'data.schema = "a\\u0000b"',
        "a lone surrogate": good + 'model.name = "\\ud800"',
        "a bare NUL": good + "\0",
        "bytes that are no UTF-8": good.encode() + b"# \xff\xfe",
        "UTF-16": good.encode("utf-16"),
        "a byte order mark": b"\xef\xbb\xbf" + good.encode(),
        "carriage returns": good.replace("\n", "\r").encode(),
        "noise 1e-300": good.replace("2.0", "1e-300"),
        "noise 1e300": good.replace("2.0", "1e299"),
        "noise of a date": good.replace("2.0", "2020-01-01"),
        "noise of a list": good.replace("2.0", "[1.0]"),
        "noise of infinity": good.replace("2.0", "inf"),
        "steps of 10^15": good.replace("= 4", "= 1000000000000000"),
        "steps of 2^63": good.replace("= 4", "= 9223372036854775808"),
        "a batch of 10^15": good.replace("= 16", "= 1000000000000000"),
        "a delta of 1e-320": good + "budget.delta = 1e-320",
        "a delta of 5e-324": good + "budget.delta = 5e-324",
        "an epsilon of 1e-300": good.replace("budget.noise = 2.0", "budget.epsilon = 1e-300"),
        "an epsilon of 1e299": good.replace("budget.noise = 2.0", "budget.epsilon = 1e299"),
        "a clipping norm of 1e308": good + "method.settings.norm = 1e308",
        "a clipping norm of 1e-300": good + "method.settings.norm = 1e-300",
        "a clipping norm of 10^400": good + f"method.settings.norm = 1{'0' * 400}",
        "10^5 hidden layers": good + f"model.settings.hidden = [{'4,' * 100_000}]",
        "10^4 hidden layers": good + f"model.settings.hidden = [{'4,' * 10_000}]",
        "three layers of 10^6": good + "model.settings.hidden = [1000000, 1000000, 1000000]",
        "a setting of a table": good + "model.settings.hidden = {a = 1}",
        "a setting of booleans": good + "model.settings.hidden = [true]",
        "an unknown setting of 10^5 letters": good + f"model.settings.{'k' * 100_000} = 1",
        "an unknown section of 10^5 letters": good + f"[{'k' * 100_000}]",
        "an unknown method": good + f"method.name = '{'m' * 100_000}'",
        "a stage of nothing": good + "[stages.sampling]\n[stages.bound]\n[stages.noise]",
        "a stage of another type": good + "[stages]\nsampling = {type = 'os.system'}\nbound = {type = 'Clip'}\n"
        "noise = {type = 'Gaussian'}",
        "a bound of 1e308": good + "[stages]\nsampling = {type = 'Poisson'}\nbound = {type = 'Clip', norm = 1e308}\n"
        "noise = {type = 'Gaussian'}",
        "a noise of 10^6 bands": good + "[stages]\nsampling = {type = 'Poisson'}\nbound = {type = 'Clip', norm = 1.0}\n"
        "noise = {type = 'BandedGaussian', bands = 1000000}",
        "a microbatch of 10^15": good + "[stages]\nmicrobatch = 1000000000000000\nsampling = {type = 'Poisson'}\n"
        "bound = {type = 'Clip', norm = 1.0}\nnoise = {type = 'Gaussian'}",
        "a schedule of 10^5 factors": good + "[stages]\nsampling = {type = 'Poisson'}\nbound = {type = 'Clip', "
        f"norm = 1.0}}\nnoise = {{type = 'Gaussian'}}\nnoise_schedule = [{'1.0,' * 100_000}]",
        "evaluations of 1e-300": good + "evaluation.every = 1e-300",
        "evaluation of 10^15 rows": good + "evaluation.batch_size = 10000000000000000",
        "copies of 10^9": good + "augmentation.copies = 1000000000\naugmentation.flip = true",
        "a shift of 10^9": good + "augmentation.shift = 1000000000",
        "10^5 features": good + "".join(f"[features.extractors.e{i}]\nkind = 'patches'\n" for i in range(10_000)),
        "features of nothing": good + "[features]\nextractors = {}",
        "features of 10^9 atoms": good + "[features.extractors.a]\nkind = 'patches'\natoms = 1000000000",
        "features of no kind": good + "[features.extractors.a]\nkind = 'eval'",
        "users of 10^9": good + "federated.users = 1000000000",
        "users of 0": good + "federated.users = 0",
        "local epochs of 10^9": good + "federated.users = 5\nfederated.epochs = 0",
        "empty": "",
    }  # fmt: skip
    return {name: text if isinstance(text, bytes) else text.encode() for name, text in texts.items()}


TABLE = b"age,job,ill\n30,nurse,no\n40,judge,yes\n50,nurse,no\n60,judge,yes\n70,nurse,no\n"
SCHEMA = "age = {low = 0, high = 100}\njob = {categories = ['nurse', 'judge']}\nill = {classes = ['no', 'yes']}\n"


def schemas():
    """Schemas of TABLE by what is wrong with them."""
    texts = {
        "arrays 3,000 deep": SCHEMA + "x = " + "[" * 3000 + "]" * 3000,
        "keys 3,000 deep": SCHEMA + "x" + ".a" * 3000 + " = 1",
        "keys 200,000 deep": SCHEMA + "x" + ".a" * 200_000 + " = 1",
        "low of 5,000 digits": SCHEMA.replace("low = 0", f"low = -{DIGITS}"),
        "low of 400 digits": SCHEMA.replace("low = 0", f"low = -1{'0' * 400}"),
        "high of 400 digits": SCHEMA.replace("100}", f"1{'0' * 400}}}"),
        "high of 300 digits": SCHEMA.replace("low = 0, high = 100", f"low = -1{'0' * 307}, high = 1{'0' * 308}"),
        "a range of 1e308": SCHEMA.replace("low = 0, high = 100", "low = -1e308, high = 1e308"),
        "a range of 5e-324": SCHEMA.replace("high = 100", "high = 5e-324"),
        "a range of nothing": SCHEMA.replace("high = 100", "high = 0"),
        "a range of nan": SCHEMA.replace("high = 100", "high = nan"),
        "a range upside down": SCHEMA.replace("low = 0", "low = 1000"),
        "a range of dates": SCHEMA.replace("low = 0", "low = 2020-01-01"),
        "a range of booleans": SCHEMA.replace("low = 0", "low = false"),
        "classes of 10^6": SCHEMA.replace("['no', 'yes']", f"['no', 'yes', {','.join(map(str, range(10**6)))}]"),
        "categories of 10^6": SCHEMA.replace("['nurse', 'judge']", f"[{','.join(map(str, range(10**6)))}]"),
        "categories of 10^5": SCHEMA.replace("['nurse', 'judge']", f"[{','.join(map(str, range(10**5)))}]"),
        "categories twice": SCHEMA.replace("'judge'", "'nurse'"),
        "no categories": SCHEMA.replace("['nurse', 'judge']", "[]"),
        "categories of a float of 5,000 digits": SCHEMA.replace("['nurse', 'judge']", f"[1e308, {'9' * 308}.0]"),
        "categories of lists": SCHEMA.replace("['nurse', 'judge']", "[[1], [2]]"),
        "one class": SCHEMA.replace("['no', 'yes']", "['no']"),
        "two labels": SCHEMA.replace("categories", "classes"),
        "a hundred thousand columns": SCHEMA + "\n".join(f"c{i} = {{low = 0, high = 1}}" for i in range(100_000)),
        "a column of controls": SCHEMA + '"\\u001b[31m\\u0007" = {low = 0, high = 1}',
        "a column of 10^5 letters": SCHEMA + f"{'c' * 100_000} = {{low = 0, high = 1}}",
        "a column with a value of 10^5 letters": SCHEMA + f"x = '{'c' * 100_000}'",
        "a column of a formula": SCHEMA + "\"=HYPERLINK('http://a')\" = {low = 0, high = 1}",
        "ignore of numbers": SCHEMA + "ignore = [1, 2]",
        "ignore of text": SCHEMA + "ignore = 'age'",
        "ignore of what is described": SCHEMA + "ignore = ['age']",
        "nothing said of a column": SCHEMA.replace("job", "jobs"),
        "ten megabytes": "#" * 10_000_000 + "\n" + SCHEMA,
        "bytes that are no UTF-8": b"\xff" + SCHEMA.encode(),
        "a NUL": SCHEMA + "\0",
        "empty": "",
        "no TOML": "age: {low: 0}",
    }
    return {name: text if isinstance(text, bytes) else text.encode() for name, text in texts.items()}
