#include "nl_sample.h"
#include "nl_sampler.h"

#define FIELD(member) offsetof(nl_sample_options, member)

static const char *const architectures[] = {"DiT", "SiT", "NaLaDiT", "NaLaSiT", NULL};
static const char *const paths[] = {"linear", "gvp", "vp", NULL};
static const char *const predictions[] = {"velocity", "noise", "score", NULL};
static const char *const channels[] = {"all", "3", NULL};
static const char *const shows[] = {"auto", "kitty", "iterm2", "blocks", NULL};
static const char *const roundings[] = {"dit", "adm", NULL};
static const char *const dtypes[] = {"auto", "f32", "bf16", NULL};

enum {
    BOTH = NL_IN_REQUEST | NL_IN_PICTURE,
    REQUEST = NL_IN_REQUEST,
    PICTURE = NL_IN_PICTURE,
};

#define FLAG(name, letter, member, ...)                                                            \
    {                                                                                              \
        name, letter, NL_OPTION_FLAG, FIELD(member), __VA_ARGS__                                   \
    }

static const nl_option options[] = {
    {"model", 'm', NL_OPTION_FILE, FIELD(model), "FILE", .group = "Model",
     .help = "safetensors, .pt, folder (shipped NaLaSiT-S/2)"},
    {"key", 0, NL_OPTION_TEXT, FIELD(key), "NAME", .where = PICTURE,
     .help = "dict of a training checkpoint: ema, model (ema)"},
    {"config", 0, NL_OPTION_FILE, FIELD(config), "FILE",
     .help = "JSON configuration in place of the checkpoint's"},
    {"arch", 0, NL_OPTION_CHOICE, FIELD(arch), "NAME", .choices = architectures, .where = PICTURE,
     .help = "DiT, SiT, NaLaDiT, NaLaSiT; if the file is silent"},
    {"path", 0, NL_OPTION_CHOICE, FIELD(path), "NAME", .choices = paths, .where = PICTURE,
     .help = "SiT: linear, gvp or vp"},
    {"prediction", 0, NL_OPTION_CHOICE, FIELD(prediction), "NAME", .choices = predictions,
     .where = PICTURE, .help = "SiT: velocity, noise or score"},
    {"vae", 0, NL_OPTION_FILE, FIELD(vae), "FILE", .help = "autoencoder, or none: latents only"},
    {"size", 0, NL_OPTION_EXTENT, FIELD(size), "HxW", 1, 16384, .where = PICTURE,
     .help = "pixels, N or HxW (the model's own)"},

    {"class", 'c', NL_OPTION_TEXT, FIELD(classes), "LIST", .where = BOTH, .group = "Pictures",
     .help = "church, n03028079, 1,4, 0-9, null, random, balanced",
     .detail =
         "Picture i takes entry i modulo the length of the list. random draws the class of each "
         "picture from the seed and its index; balanced takes all classes in turn; null is "
         "unconditional. Default: random."},
    {"number", 'n', NL_OPTION_INT, FIELD(n), "N", 1, 1e9, .where = BOTH,
     .help = "pictures in all (one for each class named)"},
    {"seed", 's', NL_OPTION_SEED, FIELD(seed), "N", .where = BOTH,
     .help = "noise is a function of seed and picture index (0)"},
    {"first-index", 0, NL_OPTION_INT, FIELD(first_index), "N", 0, 1e15, .where = BOTH,
     .help = "index of the first picture (0)",
     .detail =
         "A run may be split: -n 10 makes the pictures that -n 5 and -n 5 --first-index 5 make."},
    {"noise", 0, NL_OPTION_FILE, FIELD(noise), "FILE.npy", .where = BOTH,
     .help = "initial latents [n, C, H, W]"},

    {"sampler", 0, NL_OPTION_CHOICE, FIELD(sampler), "NAME", .choices = nl_method_names,
     .where = BOTH, .group = "Sampler",
     .help = "DiT: ddpm ddim. SiT: euler midpoint heun heun2 rk4\ndopri5 sde-euler sde-heun",
     .detail = "heun's last step is Euler at the end of the "
               "interval; heun2's is not (the explicit trapezoid)."},
    {"steps", 0, NL_OPTION_INT, FIELD(steps), "N", 1, 10000, .where = BOTH,
     .help = "steps taken (the public SiT code's N is N - 1 here)",
     .detail = "The public SiT code counts the points instead of the steps. SDEs: N counts the "
               "last step. "
               "DDPM, DDIM: the respaced length."},
    {"respacing", 0, NL_OPTION_TEXT, FIELD(respacing), "TEXT", .where = BOTH,
     .help = "DDPM, DDIM: 250, ddim50 or 10,15,20"},
    {"eta", 0, NL_OPTION_REAL, FIELD(eta), "X", 0, 1, .where = BOTH,
     .help = "DDIM: 0 deterministic to 1 as noisy as DDPM (0)"},
    {"atol", 0, NL_OPTION_REAL, FIELD(atol), "X", 1e-12, 1, .where = BOTH,
     .help = "dopri5: absolute tolerance (1e-6)"},
    {"rtol", 0, NL_OPTION_REAL, FIELD(rtol), "X", 1e-12, 1, .where = BOTH,
     .help = "dopri5: relative tolerance (1e-3)"},
    {"sde-form", 0, NL_OPTION_CHOICE, FIELD(sde_form), "NAME", .choices = nl_sde_form_names,
     .where = BOTH, .help = "sigma, constant, sbdm, linear, decreasing, ..."},
    {"sde-norm", 0, NL_OPTION_REAL, FIELD(sde_norm), "X", 1e-9, 1000, .where = BOTH | NL_ONLY_MAN,
     .help = "SDE: size of the diffusion (1)"},
    {"last-step", 0, NL_OPTION_CHOICE, FIELD(last_step), "NAME", .choices = nl_last_step_names,
     .where = BOTH, .help = "SDE: mean, none, tweedie or euler (mean)"},
    {"last-step-size", 0, NL_OPTION_REAL, FIELD(last_step_size), "X", 1e-6, 0.5,
     .where = BOTH | NL_ONLY_MAN, .help = "SDE: length of the last step (0.04)"},
    FLAG("clip-denoised", 0, clip_denoised, .where = BOTH,
         .help = "DDPM, DDIM: clamp x_0 to [-1, 1] (pixel models)"),
    {"cfg-scale", 0, NL_OPTION_REAL, FIELD(cfg_scale), "X", 0, 1000, .where = BOTH,
     .help = "guidance; 1: none"},
    {"cfg-channels", 0, NL_OPTION_CHOICE, FIELD(cfg_channels), "all|3", .choices = channels,
     .where = BOTH, .help = "channels guided; 3 as the public code (all)"},
    {"cfg-interval", 0, NL_OPTION_INTERVAL, FIELD(cfg_interval), "A,B", 0, 1e6, .where = BOTH,
     .help = "guidance only for A <= t <= B (everywhere)"},

    {"out", 'o', NL_OPTION_FILE, FIELD(out), "NAME", .where = REQUEST, .group = "Output",
     .help = "a.png, out/, %06d.png, a.npz, - (church-seed0.png)",
     .detail =
         "A folder is one that exists or a name that ends in a slash; a pattern holds the picture "
         "index; - is one PNG on standard output. NAME.npz takes all pictures as uint8 arr_0 "
         "[N, H, W, 3] and their classes as arr_1; what is stopped goes on when the same command "
         "is "
         "run again."},
    {"latents", 0, NL_OPTION_FILE, FIELD(latents), "FILE.npy", .where = REQUEST,
     .help = "write the final latents [n, C, H, W]"},
    {"grid", 0, NL_OPTION_EXTENT, FIELD(grid), "RxC", 1, 1000, .where = BOTH,
     .help = "one picture of R rows and C columns"},
    {"preview-every", 0, NL_OPTION_INT, FIELD(preview_every), "K", 1, 10000, .where = REQUEST,
     .help = "show, or write NAME-stepNNNN.png, every K steps"},
    {"show", 0, NL_OPTION_CHOICE, FIELD(show), "HOW", .choices = shows,
     .where = REQUEST | NL_OPTIONAL_VALUE, .help = "in the terminal: kitty, iterm2 or blocks"},
    FLAG("json", 0, json, .help = "a JSON object for each picture on standard output"),
    FLAG("no-metadata", 0, no_metadata, .where = REQUEST, .help = "no parameters in the picture"),
    {"rounding", 0, NL_OPTION_CHOICE, FIELD(rounding), "HOW", .choices = roundings, .where = BOTH,
     .help = "dit: trunc(127.5x + 128), adm: + 127.5 (dit)"},
    FLAG("force", 'f', force, .where = REQUEST, .help = "overwrite files (never without)"),
    FLAG("resume", 0, resume, .help = "make only the pictures that are not there yet",
         .detail = "A picture that is there has to be one that this command would write. Archives "
                   "(.npz) go on without this option."),
    {"requests", 0, NL_OPTION_FILE, FIELD(requests), "FILE|-",
     .help = "JSON lines: {\"class\": 4, \"seed\": 1, \"out\": \"a.png\"}",
     .detail =
         "Keys are the names of the options of the groups Pictures, Sampler and Output, with _ for "
         "-; \"id\" comes back in the answer, a line of JSON. A bad line is answered with an error "
         "and the next one is read; the model stays loaded."},
    {"from", 0, NL_OPTION_FILE, FIELD(from), "PICTURE.png",
     .help = "make a picture again; other options change it"},

    {"device", 0, NL_OPTION_TEXT, FIELD(device), "NAME", .group = "Machine",
     .help = "auto, cpu, cuda, cuda:1"},
    {"dtype", 0, NL_OPTION_CHOICE, FIELD(dtype), "NAME", .choices = dtypes,
     .help = "of matrix products: auto, f32 or bf16"},
    {"threads", 't', NL_OPTION_INT, FIELD(threads), "N", 1, 1024,
     .help = "CPU threads (all that the process may use)"},
    {"batch", 'b', NL_OPTION_INT, FIELD(batch), "N", 1, 65536,
     .help = "pictures at once (as fits; does not change them)"},
    {"max-memory", 0, NL_OPTION_BYTES, FIELD(max_memory), "SIZE",
     .help = "limit, such as 4G (none)"},
    {"gpus", 0, NL_OPTION_TEXT, FIELD(gpus), "N|all", .help = "one process for each GPU",
     .detail = "Pictures are dealt out by index and are those of one GPU."},
    {"processes", 0, NL_OPTION_INT, FIELD(processes), "N", 1, 1024, .where = NL_ONLY_MAN,
     .help = "The same on the CPU: N processes share the work and the threads"},
    {"rank", 0, NL_OPTION_TEXT, FIELD(rank), "R/W", .where = NL_ONLY_MAN,
     .help = "This process is number R of W that share the work",
     .detail = "Taken from the environment under mpirun and srun."},
    FLAG("quiet", 'q', quiet, .help = "errors only, no progress"),
    FLAG("verbose", 'v', verbose, .help = "say more"),
    FLAG("help", 'h', help, .help = "this text"),
    {0},
};

static const char notes[] =
    "Defaults: SiT, NaLaSiT (the shipped model): heun, 20 steps, guidance 3. DiT,\n"
    "  NaLaDiT: ddpm, 250 steps, guidance 4. No classes: guidance 1. Other samplers:\n"
    "  ddim 50, euler 40, midpoint heun2 20, rk4 10, sde-euler sde-heun 250 steps.\n";

static const char examples[] =
    "  nalagen sample --class church\n"
    "  nalagen sample -c 0-9 -n 40 --grid 4x10 --seed 7 -o grid.png\n"
    "  nalagen sample -c balanced -n 50000 -o samples.npz --gpus all\n"
    "  nalagen sample -m DiT-XL-2-256x256.safetensors --vae sd-vae.safetensors -c 207\n";

const nl_sample_options nl_sample_defaults = {.cfg_scale = -1};

const nl_command nl_sample_command = {
    .name = "sample",
    .summary = "Make pictures of given classes",
    .arguments = "[OPTION...]",
    .notes = notes,
    .examples = examples,
    .options = options,
    .run = nl_sample_main,
};
