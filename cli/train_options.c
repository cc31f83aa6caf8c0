/* SPDX-License-Identifier: MIT */
/* The train command's table of options. */
#include "nl_training.h"

#define FIELD(member)   offsetof(nl_train_values, member)
#define TRAIN(member)   offsetof(nl_train_values, train.member)
#define MACHINE(member) offsetof(nl_train_values, machine.member)

enum {
    RECORD = NL_IN_REQUEST /* may stand in the file of --options, and is written to config.json */
};

#define FLAG(name, letter, member, ...)                                                            \
    {                                                                                              \
        name, letter, NL_OPTION_FLAG, member, __VA_ARGS__                                          \
    }

const nl_option nl_train_rows[] = {
    {"model", 'm', NL_OPTION_TEXT, TRAIN(model), "NAME", .where = NL_COMMON | RECORD,
     .group = "Model and data", .help = "NaLaSiT-S/2, DiT-XL/2, SiT-6x256x4/2, ...",
     .detail =
         "DiT, SiT, NaLaDiT, GLASiT, ...; then S, B, L, XL or depth x hidden size x heads; then "
         "the patch. Size, channels and classes follow from the data."},
    {"data", 'd', NL_OPTION_FILE, TRAIN(data), "FOLDER", .where = NL_COMMON | RECORD,
     .help = "made by nalagen encode"},
    {"out", 'o', NL_OPTION_FILE, TRAIN(out), "RUN", .where = NL_COMMON | RECORD,
     .help = "folder of the run; alone: resume it",
     .detail = "Alone, or with a new length: by the options in RUN/config.json, in the folder that "
               "it was begun in."},
    {"config", 0, NL_OPTION_FILE, TRAIN(config), "FILE", .where = RECORD,
     .help = "JSON configuration over it, or that JSON itself",
     .detail = "FILE, or '{\"lepe\": true}': path, feature_map, middle_head, ..."},
    {"init", 0, NL_OPTION_FILE, TRAIN(init), "FILE", .where = NL_COMMON | RECORD,
     .help = "weights to start from; classes and size may differ"},
    {"resume", 0, NL_OPTION_FILE, TRAIN(resume), "HOW", .help = "auto, none or a checkpoint (auto)",
     .detail =
         "auto resumes from the newest checkpoint in RUN that is whole, exactly as if the run "
         "had not been stopped, or starts."},

    {"steps", 0, NL_OPTION_INT, TRAIN(steps), "N", 1, 1e12, .where = NL_COMMON | RECORD,
     .group = "Length", .help = "of the whole run (until it is stopped)"},
    {"epochs", 0, NL_OPTION_INT, TRAIN(epochs), "N", 1, 1e9, .where = RECORD,
     .help = "the same in passes over the data"},
    {"minutes", 0, NL_OPTION_REAL, TRAIN(minutes), "X", 0.001, 1e7, .where = NL_COMMON | RECORD,
     .help = "the same in time; the schedule follows it"},
    {"overfit", 0, NL_OPTION_INT, TRAIN(overfit), "N", 1, 1e12, .where = RECORD,
     .help = "the first N samples alone: does it learn at all?"},

    {"batch", 'b', NL_OPTION_INT, TRAIN(batch), "N", 1, 1 << 20, .where = NL_COMMON | RECORD,
     .group = "Optimiser", .help = "samples of a step, of all processes (256)"},
    {"accumulate", 0, NL_OPTION_INT, TRAIN(accumulate), "N", 1, 1 << 16, .where = RECORD,
     .help = "parts that they are taken in: less memory (1)"},
    FLAG("checkpointing", 0, TRAIN(checkpointing), .where = RECORD,
         .help = "keep block inputs alone: less memory still"),
    {"lr", 0, NL_OPTION_REAL, TRAIN(rate), "X", 0, 10, .where = NL_COMMON | RECORD,
     .help = "learning rate (1e-4)"},
    {"schedule", 0, NL_OPTION_CHOICE, TRAIN(schedule), "NAME", .choices = nl_train_schedules,
     .where = RECORD, .help = "constant, cosine or cooldown (constant)",
     .detail = "cosine falls over the whole run; cooldown falls linearly over its last part."},
    {"cooldown", 0, NL_OPTION_REAL, TRAIN(cooldown), "X", 0.001, 1, .where = RECORD,
     .help = "part of the run that cools down (0.2)"},
    {"last-lr", 0, NL_OPTION_REAL, TRAIN(last_rate), "X", 0, 1, .where = RECORD,
     .help = "where both schedules end, as a part of --lr (0)"},
    {"warmup", 0, NL_OPTION_INT, TRAIN(warmup), "N", 0, 1e9, .where = RECORD,
     .help = "steps of a linear start (0)"},
    {"query-scale", 0, NL_OPTION_REAL, TRAIN(query_scale), "X", 1e-6, 1e6, .where = RECORD,
     .help = "of NaLa: size and learning rate of queries (1)",
     .detail =
         "As if the exponent were lambda (tau + tanh(X |q|)): 0.125 keeps tanh from its limit "
         "at 64 channels a head."},
    {"clip", 0, NL_OPTION_REAL, TRAIN(clip), "X", 0, 1e9, .where = RECORD,
     .help = "largest norm of the gradient (0: any)"},
    {"decay", 0, NL_OPTION_REAL, TRAIN(decay), "X", 0, 10, .where = RECORD,
     .help = "of weights; vectors take none (0)"},
    {"beta1", 0, NL_OPTION_REAL, TRAIN(beta1), "X", 0, 0.99999, .where = RECORD,
     .help = "of Adam (0.9)"},
    {"beta2", 0, NL_OPTION_REAL, TRAIN(beta2), "X", 0, 0.999999, .where = RECORD,
     .help = "of Adam (0.999)"},
    {"eps", 0, NL_OPTION_REAL, TRAIN(epsilon), "X", 1e-20, 1, .where = RECORD,
     .help = "of Adam (1e-8)"},
    {"ema", 0, NL_OPTION_TEXT, TRAIN(ema), "D[,D]", .where = NL_COMMON | RECORD,
     .help = "decays of moving averages (auto)",
     .detail =
         "auto is 0.9999 with --ema-warmup, without which a short run would not forget its first "
         "weights. Pictures, validation and "
         "model.safetensors are the first one's. power:S is the average "
         "of "
         "a power function: its width is the part S of the run (0.1, say), however long that is."},
    FLAG("ema-warmup", 0, TRAIN(ema_warmup), .where = RECORD,
         .help = "decay at most (1 + step) / (10 + step)"),

    {"times", 0, NL_OPTION_CHOICE, TRAIN(times), "NAME", .choices = nl_train_times, .where = RECORD,
     .group = "Loss", .help = "uniform or logit-normal (uniform)"},
    {"times-mean", 0, NL_OPTION_REAL, TRAIN(times_mean), "X", -10, 10, .where = RECORD,
     .help = "of the normal before the logistic function (0)"},
    {"times-deviation", 0, NL_OPTION_REAL, TRAIN(times_deviation), "X", 0.01, 10, .where = RECORD,
     .help = "the same (1)"},
    {"weighting", 0, NL_OPTION_CHOICE, TRAIN(weighting), "NAME", .choices = nl_train_weightings,
     .where = RECORD, .help = "none, velocity, likelihood or min-snr (none)"},
    {"min-snr", 0, NL_OPTION_REAL, TRAIN(min_snr), "X", 0.01, 1000, .where = RECORD,
     .help = "gamma of min-snr (5)"},
    {"label-dropout", 0, NL_OPTION_REAL, TRAIN(label_dropout), "X", 0, 1, .where = RECORD,
     .help = "part of samples without their class (0.1)"},
    {"dropout", 0, NL_OPTION_REAL, TRAIN(dropout), "X", 0, 0.99, .where = RECORD,
     .help = "part of the MLPs' hidden layers (0)"},
    FLAG("no-flip", 0, TRAIN(no_flip), .where = RECORD, .help = "no mirrored pictures"),
    {"seed", 's', NL_OPTION_SEED, TRAIN(seed), "N", .where = RECORD,
     .help = "of weights, order, noise, times, dropout (0)"},

    {"log-every", 0, NL_OPTION_INT, TRAIN(log_every), "N", 0, 10000, .where = RECORD,
     .group = "Record", .help = "steps (auto: a part of the run, at most 100)"},
    {"save-every", 0, NL_OPTION_INT, TRAIN(save_every), "N", 0, 1e9, .where = NL_COMMON | RECORD,
     .help = "steps between checkpoints (auto, at most 5000)"},
    {"keep", 0, NL_OPTION_INT, TRAIN(keep), "N", 0, 1e6, .where = RECORD,
     .help = "newest checkpoints that stay; 0: all (3)"},
    {"snapshot-every", 0, NL_OPTION_INT, TRAIN(snapshot_every), "N", 1, 1e9, .where = RECORD,
     .help = "steps between snapshots for nalagen average (none)",
     .detail =
         "Of the averages power:0.05 and power:0.1, which are kept beside --ema, or of those that "
         "--ema names."},
    {"snapshots", 0, NL_OPTION_INT, TRAIN(snapshots), "N", 2, 1000, .where = RECORD,
     .help = "that stay at most: then every other one goes (32)"},
    {"sample-every", 0, NL_OPTION_INT, TRAIN(sample_every), "N", 0, 1e9,
     .where = NL_COMMON | RECORD, .help = "steps between grids; 0: none (auto, at most 10000)",
     .detail = "auto: ten in a run. With --minutes by the clock, not sooner than every 5 minutes; "
               "checkpoints then come at least every 15."},
    {"samples", 0, NL_OPTION_INT, TRAIN(samples), "N", 1, 1024, .where = RECORD,
     .help = "pictures in a grid (16)"},
    {"sample-steps", 0, NL_OPTION_INT, TRAIN(sample_steps), "N", 1, 1000, .where = RECORD,
     .help = "of their sampler (its default)"},
    {"cfg-scale", 0, NL_OPTION_REAL, TRAIN(cfg_scale), "X", 0, 1000, .where = RECORD,
     .help = "their guidance (the model's default)"},
    {"vae", 0, NL_OPTION_FILE, TRAIN(vae), "FILE", .where = RECORD,
     .help = "their autoencoder, tiny or none (the model's)"},
    {"val", 0, NL_OPTION_FILE, TRAIN(validation), "FOLDER", .where = NL_COMMON | RECORD,
     .help = "data that is held out: its loss, of the average"},
    {"hold-out", 0, NL_OPTION_REAL, TRAIN(hold_out), "PART", 1e-6, 0.5, .where = RECORD,
     .help = "part of each class' pictures kept for that (none)",
     .detail = "Every tenth, with 0.1, in the order in which they were encoded, with all their "
               "crops; validated on are the whole pictures."},
    {"val-every", 0, NL_OPTION_INT, TRAIN(validate_every), "N", 1, 1e9, .where = RECORD,
     .help = "steps (auto, at most 5000)"},
    {"val-count", 0, NL_OPTION_INT, TRAIN(validation_count), "N", 1, 1e12, .where = RECORD,
     .help = "samples of it; more: at other times again (all)"},
    {"patience", 0, NL_OPTION_INT, TRAIN(patience), "N", 1, 1e6, .where = RECORD,
     .help = "validations without a better one that end the run",
     .detail =
         "Its model is then the average that had the best loss, and so it is where the run ends "
         "earlier. The best one is in the checkpoints: --key best."},
    {"max-skipped", 0, NL_OPTION_INT, TRAIN(max_skipped), "N", 1, 1e6, .where = RECORD,
     .help = "steps in a row that may not be finite (10)"},
    {"dump", 0, NL_OPTION_INT, TRAIN(dump), "N", 1, 10000, .where = RECORD,
     .help = "latents, noise, times, labels of the first N steps",
     .detail = "And the first weights, in RUN/dump.safetensors, for comparison with other code."},
    {"options", 0, NL_OPTION_FILE, FIELD(options), "FILE",
     .help = "the same options as a JSON object, before these"},

    {.include = nl_device_options, .offset = offsetof(nl_train_values, machine), .where = RECORD},
    {"dtype", 0, NL_OPTION_CHOICE, MACHINE(dtype), "NAME", .choices = nl_gradient_dtypes,
     .where = RECORD, .help = "of matrix products: auto, f32 or bf16"},
    {"gpus", 0, NL_OPTION_TEXT, FIELD(gpus), "N|all", .where = NL_COMMON,
     .help = "one process for each GPU",
     .detail = "mpirun and srun start them as well; on CPUs mpirun alone does."},
    FLAG("dry-run", 'n', TRAIN(dry_run), .where = NL_COMMON,
         .help = "say what memory and time it takes, and stop"),
    FLAG("profile", 0, TRAIN(profile), .help = "say where the time of a step goes, and stop"),
    {.include = nl_common_options, .offset = offsetof(nl_train_values, machine)},
    {0},
};

static const char *const recipes[] = {"published", "small", NULL};

static const nl_option options[] = {
    {"recipe", 0, NL_OPTION_CHOICE, FIELD(recipe), "NAME", .choices = recipes,
     .where = NL_COMMON | RECORD, .help = "published or small: see below (published)",
     .detail = "What the options below are that are not given. small chooses by the number of "
               "pictures and classes and by the device: start, length, batch, learning rate, "
               "dropout, averages, what is held out and when to stop. It says what it chose, and a "
               "run that is resumed keeps it."},
    {.include = nl_train_rows},
    {0},
};

static nl_status train_main(int argc, char **argv)
{
    nl_train_values values = {.command = &nl_train_command, .train = nl_train_defaults};
    return nl_train_with(argc, argv, &values);
}

const nl_command nl_train_command = {
    .name = "train",
    .summary = "Train a model on encoded data",
    .arguments = "--model NAME --data FOLDER --out RUN [OPTION...]",
    .notes = "RUN takes config.json, log.jsonl, metrics.jsonl, checkpoints/, samples/,\n"
             "TensorBoard's event files and, at the end, model.safetensors and done. The same\n"
             "command resumes a run that was stopped, exactly. SIGINT, SIGTERM, SIGUSR1,\n"
             "SIGHUP and SIGXCPU save and stop (code 130); a second one of the first three\n"
             "stops at once. The defaults are the published recipe; in short runs what is auto\n"
             "follows the length, so that 2000 steps show pictures. --recipe small chooses for\n"
             "your own pictures, be they 200 or 20,000, from the model that ships.\n",
    .examples = "  nalagen encode pictures -o own --crops 6     your own, a folder for each class\n"
                "  nalagen train --recipe small -d own -o run\n"
                "  nalagen encode imagenet/train -o data        once\n"
                "  nalagen train -m NaLaSiT-S/2 -d data -o run --steps 400000\n"
                "  nalagen train -m NaLaSiT-S/2 -d data -o run --dry-run\n"
                "  nalagen plot run                             run/plot.png\n"
                "  nalagen sample --model run/model.safetensors --class church\n",
    .options = options,
    .run = train_main,
};
