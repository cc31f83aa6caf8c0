/* SPDX-License-Identifier: MIT */
/* The sample command's table of options. */
#include "nl_sample.h"

#include <string.h>

#define FIELD(member)   offsetof(nl_sample_options, member)
#define MACHINE(member) offsetof(nl_sample_options, machine.member)

static const char *const shows[] = {"auto", "kitty", "iterm2", "blocks", "letters", NULL};

enum {
    BOTH = NL_IN_BOTH,
    REQUEST = NL_IN_REQUEST,
};

#define FLAG(name, letter, member, ...)                                                            \
    {                                                                                              \
        name, letter, NL_OPTION_FLAG, FIELD(member), __VA_ARGS__                                   \
    }

static const nl_option options_table[] = {
    {.include = nl_sampling_options, .offset = FIELD(task)},
    {"noise", 0, NL_OPTION_FILE, FIELD(noise), "FILE", .where = BOTH,
     .help = "initial latents [n, C, H, W]",
     .detail = ".npy, .npz or .safetensors, as decode takes them."},
    {.include = nl_walk_options, .offset = FIELD(task)},

    {"out", 'o', NL_OPTION_FILE, FIELD(out), "NAME", .where = NL_COMMON | REQUEST,
     .group = "Output", .help = "a.png, out/, %06d.png, a.npz, - (church-seed0.png)",
     .detail =
         "A folder is one that exists or a name that ends in a slash; a pattern holds the picture "
         "index; - is one PNG on standard output. NAME.npz takes all pictures as uint8 arr_0 "
         "[N, H, W, 3] and their classes as arr_1; run the same command to resume one "
         "that was stopped."},
    {"latents", 0, NL_OPTION_FILE, FIELD(latents), "FILE.npy", .where = REQUEST,
     .help = "write the final latents [n, C, H, W]"},
    {"grid", 0, NL_OPTION_EXTENT, FIELD(grid), "RxC", 1, 1000, .where = NL_COMMON | BOTH,
     .help = "one picture of R rows and C columns"},
    {"animate", 0, NL_OPTION_INT, FIELD(animate), "MS", 10, 60000, .where = BOTH,
     .help = "one animated PNG, MS milliseconds a picture"},
    {"preview-every", 0, NL_OPTION_INT, FIELD(preview_every), "K", 1, 10000, .where = REQUEST,
     .help = "show, or write NAME-stepNNNN.png, every K steps"},
    {"show", 0, NL_OPTION_CHOICE, FIELD(show), "HOW", .choices = shows,
     .where = NL_COMMON | REQUEST | NL_OPTIONAL_VALUE,
     .help = "in the terminal: kitty, iterm2, blocks, letters"},
    FLAG("json", 0, json, .help = "a JSON object for each picture on standard output"),
    FLAG("no-metadata", 0, no_metadata, .where = REQUEST, .help = "no parameters in the picture"),
    FLAG("force", 'f', force, .where = NL_COMMON | REQUEST,
         .help = "overwrite files (never without)"),
    FLAG("resume", 0, resume, .help = "make only the pictures that are not there yet",
         .detail = "A picture that is there has to be one that this command would write. Archives "
                   "(.npz) resume without this option."),
    {"requests", 0, NL_OPTION_FILE, FIELD(requests), "FILE|-",
     .help = "JSON lines: {\"class\": 4, \"seed\": 1, \"out\": \"a.png\"}",
     .detail =
         "Keys are the names of the options of the groups Pictures, Sampler, Walk and Output, with "
         "_ for "
         "-; \"id\" comes back in the answer, a line of JSON. A bad line is answered with an error "
         "and the next one is read; the model stays loaded. --root DIR keeps them in a folder."},
    {"root", 0, NL_OPTION_FILE, FIELD(root), "DIR",
     .help = "requests read and write files below it alone",
     .detail =
         "A path with .. or through a link that leads out is refused, an absolute one that lies "
         "elsewhere too. Paths count from the current folder all the same."},
    {"from", 0, NL_OPTION_FILE, FIELD(from), "PICTURE.png", .where = NL_COMMON,
     .help = "make a picture again; other options change it"},

    {.include = nl_device_options, .offset = offsetof(nl_sample_options, machine)},
    {"dtype", 0, NL_OPTION_CHOICE, MACHINE(dtype), "NAME", .choices = nl_dtypes,
     .help = "of matrix products: auto, f32, bf16, fp8"},
    {"batch", 'b', NL_OPTION_INT, FIELD(batch), "N", 1, 65536,
     .help = "pictures at once (as fits; does not change them)"},
    {"gpus", 0, NL_OPTION_TEXT, FIELD(gpus), "N|all", .where = NL_COMMON,
     .help = "one process for each GPU",
     .detail = "Pictures are dealt out by index and are those of one GPU."},
    {"processes", 0, NL_OPTION_INT, FIELD(processes), "N", 1, 1024,
     .help = "the same on the CPU: they share work and threads"},
    {"rank", 0, NL_OPTION_TEXT, FIELD(rank), "R/W",
     .help = "this process is number R of W that share the work",
     .detail = "Taken from the environment under mpirun and srun."},
    {.include = nl_common_options, .offset = offsetof(nl_sample_options, machine)},
    {0},
};

static const char notes[] =
    "Defaults: SiT, NaLaSiT (the shipped model): heun, 10 steps (euler 40,\n"
    "  sde-* 250), guidance 3 for 0.1 <= t <= 0.9 (a given scale acts everywhere).\n"
    "  DiT, NaLaDiT: ddpm, 250 steps (ddim 50), guidance 4. No classes: guidance 1.\n";

static const char examples[] =
    "  nalagen sample --class church\n"
    "  nalagen sample -c 0-9 -n 40 --grid 4x10 --seed 7 -o grid.png\n"
    "  nalagen sample -c balanced -n 50000 -o samples.npz --gpus all\n"
    "  nalagen sample -m DiT-XL-2-256x256.safetensors --vae sd-vae.safetensors -c 207\n";

const nl_sample_options nl_sample_defaults = {.task.sampling.cfg_scale = -1};

const nl_command nl_sample_command = {
    .name = "sample",
    .summary = "Make pictures of given classes",
    .arguments = "[OPTION...]",
    .operands = "classes are given with --class",
    .notes = notes,
    .examples = examples,
    .options = options_table,
    .run = nl_sample_main,
};
