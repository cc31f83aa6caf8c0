/* SPDX-License-Identifier: MIT */
/* What a checkpoint is: docs/formats.md as a structure. JSON in, JSON out; the same text stands in checkpoints,
 * PNG metadata, run folders and --config files. */
#ifndef NL_CONFIG_H
#define NL_CONFIG_H

#include "nl_checkpoint.h"
#include "ops.h"

typedef enum nl_architecture {
    NL_ARCH_UNKNOWN = -1, /* not said yet; refused by nl_config_check */
    NL_ARCH_DIT,
    NL_ARCH_SIT
} nl_architecture;

/* What mixes the tokens in a block, each in a file of its own (src/dit/mixer_*.c): the value of "attention", and what
 * the names of its models begin with. */
#define NL_MIXERS(X)                                                                               \
    X(SOFTMAX, softmax, "")                                                                        \
    X(NALA, nala, "NaLa")                                                                          \
    X(GLA, gla, "GLA")                                                                             \
    X(MEDIATOR, mediator, "Mediator")
/* The MLP of a block (src/dit/mlp_*.c): the value of "mlp". */
#define NL_MLPS(X) X(GELU, gelu) X(SWIGLU, swiglu) X(MIX, mix)

/* What is known of a flow map's one step u(x, 0, 1): as much as of all others; nothing else is; a second set of the network's
 * weights makes it, which the file holds as "one_step.NAME". */
#define NL_ONE_STEPS(X)                                                                            \
    X(NL_ONE_STEP_NONE, "none")                                                                    \
    X(NL_ONE_STEP_ALONE, "alone")                                                                  \
    X(NL_ONE_STEP_BESIDE, "beside")

#define NL_ONE_STEP_KEY "one_step"

#define NL_ROW(NAME, name, prefix) NL_ATTENTION_##NAME,
typedef enum nl_attention { NL_MIXERS(NL_ROW) NL_ATTENTION_COUNT } nl_attention;
#undef NL_ROW
#define NL_ROW(NAME, name) NL_MLP_##NAME,
typedef enum nl_mlp { NL_MLPS(NL_ROW) NL_MLP_COUNT } nl_mlp;
#undef NL_ROW

/* DiT: the schedule of noise, what the network predicts, the variance of a step. SiT: the path, what the network
 * predicts. Names are values of the configuration's keys. */
#define NL_SCHEDULES(X)                                                                            \
    X(NL_SCHEDULE_LINEAR, "linear")                                                                \
    X(NL_SCHEDULE_COSINE, "cosine")                                                                \
    X(NL_SCHEDULE_SCALED_LINEAR,                                                                   \
      "scaled_linear") /* the roots of beta are linear (Stable Diffusion) */
#define NL_PREDICTSES(X)                                                                           \
    X(NL_PREDICTS_EPSILON, "epsilon")                                                              \
    X(NL_PREDICTS_X_START, "x_start")                                                              \
    X(NL_PREDICTS_V, "v") /* sqrt(alpha_bar) eps - sqrt(1 - alpha_bar) x_0 */
/* Which of T timesteps n steps keep: 0 to T - 1 evenly (the public code), every (T / n)-th from the first on, or every
 * (T / n)-th down from the last (timestep_spacing of diffusers). */
#define NL_SPACINGS(X)                                                                             \
    X(NL_SPACING_LINSPACE, "linspace")                                                             \
    X(NL_SPACING_LEADING, "leading")                                                               \
    X(NL_SPACING_TRAILING, "trailing")
#define NL_VARIANCES(X)                                                                            \
    X(NL_VARIANCE_LEARNED_RANGE, "learned_range")                                                  \
    X(NL_VARIANCE_FIXED_SMALL, "fixed_small")                                                      \
    X(NL_VARIANCE_FIXED_LARGE, "fixed_large")
#define NL_QUERY_NORMS(X) X(NL_QUERY_L2, "l2") X(NL_QUERY_RMS, "rms")
#define NL_PATHS(X)       X(NL_PATH_LINEAR, "linear") X(NL_PATH_GVP, "gvp") X(NL_PATH_VP, "vp")
#define NL_PREDICTIONS(X)                                                                          \
    X(NL_PREDICTION_VELOCITY, "velocity")                                                          \
    X(NL_PREDICTION_NOISE, "noise")                                                                \
    X(NL_PREDICTION_SCORE, "score")
#define NL_AUTOENCODERS(X)                                                                         \
    X(NL_AUTOENCODER_KL, "kl") X(NL_AUTOENCODER_TINY, "tiny") X(NL_AUTOENCODER_NONE, "none")

typedef enum nl_one_step { NL_ONE_STEPS(NL_LIST_CONSTANT) } nl_one_step;
typedef enum nl_schedule { NL_SCHEDULES(NL_LIST_CONSTANT) } nl_schedule;
typedef enum nl_spacing { NL_SPACINGS(NL_LIST_CONSTANT) } nl_spacing;
typedef enum nl_predicts { NL_PREDICTSES(NL_LIST_CONSTANT) } nl_predicts;
typedef enum nl_variance { NL_VARIANCES(NL_LIST_CONSTANT) } nl_variance;
typedef enum nl_query_norm { NL_QUERY_NORMS(NL_LIST_CONSTANT) } nl_query_norm;
typedef enum nl_path { NL_PATHS(NL_LIST_CONSTANT) } nl_path;
typedef enum nl_prediction { NL_PREDICTIONS(NL_LIST_CONSTANT) } nl_prediction;
typedef enum nl_autoencoder { NL_AUTOENCODERS(NL_LIST_CONSTANT) } nl_autoencoder;

typedef struct nl_class_name {
    char *wnid; /* or NULL */
    char *name; /* or NULL */
} nl_class_name;

typedef struct nl_config {
    nl_architecture architecture;
    nl_attention attention;
    nl_mlp mlp;
    nl_norm norm;       /* of blocks and head */
    bool qk_norm;       /* the heads of q and k are normalised: RMS with weights */
    bool qk_norm_layer; /* that is a LayerNorm with weights and biases, eps 1e-5 */
    nl_feature_map feature_map;
    double lambda, tau;
    bool learn_exponents;     /* each head has its own, which begin there */
    nl_query_norm query_norm; /* in NaLa's exponents */
    bool gate, lepe, rope;
    bool dw_conv;  /* each block ends with a depthwise 3 x 3 convolution of the stream (DiG) */
    int mediators; /* of an attention through them, a square */
    int depth, hidden_size, num_heads, patch_size;
    /* A flow map u(x, t, s) (docs/formats.md): so many first blocks see t, the others and the head s; 0: a network of one
     * time. guided: what it predicts has guidance inside. */
    int flow_map;
    nl_one_step one_step;
    bool guided;
    int middle_head; /* after so many blocks a second head predicts the same; 0: there is none */
    /* Of a flow map with a middle head: what it predicts is middle + internal_guidance (head - middle). 0: has no such. */
    double internal_guidance;
    bool
        crop_conditioning; /* it is told what part of its picture a sample is (NL_CROP_SCALE, ...) */
    int input_height, input_width; /* of the latent */
    int in_channels, num_classes;
    bool no_null_class;   /* the table of classes has no row for the null class */
    bool stored_position; /* pos_embed of the file in place of the table of sines and cosines */
    bool
        of_diffusers; /* trained there: time frequencies by 127, second norm of a block with eps 1e-5 */
    bool learn_sigma; /* the head has 2 in_channels channels */
    double class_dropout_prob;
    nl_schedule schedule; /* DiT */
    int diffusion_steps;
    double beta_start,
        beta_end; /* 0: 1e-4 and 0.02 of 1000 steps; scaled_linear: 0.00085 and 0.012 */
    nl_spacing spacing;
    int steps_offset;       /* leading: added to every kept timestep */
    bool final_alpha_first; /* DDIM: below the lowest level lies timestep 0's alpha_bar, not 1 */
    bool clip_denoised;     /* x_0 is clamped to [-1, 1] */
    nl_predicts predicts;
    nl_variance variance;
    nl_path path; /* SiT */
    nl_prediction prediction;
    double train_eps, sample_eps; /* negative: by docs/public-code.md B3 */
    nl_class_name *class_names;   /* [num_classes] or NULL */
    nl_autoencoder autoencoder;
    double latent_scale, latent_shift;
    bool latent_said;  /* the two are the model's word and not the usual ones of the autoencoder */
    int latent_factor; /* pixels for one latent; 0: not said, 8 with an autoencoder */
    int64_t images_seen;             /* the rest is for people */
    double ema_decay, ema_sigma_rel; /* of the moving average that the weights are; 0: none */
    char *trained_on, *license;
} nl_config;

/* By their enumerations, ended by NULL. */
extern const char *const nl_mixer_names[], *const nl_mlp_names[], *const nl_norm_names[];
extern const char *const nl_one_step_names[], *const nl_spacing_names[],
                                                  *const nl_query_norm_names[];
extern const char *const nl_schedule_names[], *const nl_predicts_names[],
                                                  *const nl_variance_names[];
extern const char *const nl_path_names[], *const nl_prediction_names[];
extern const char *const nl_autoencoder_names[]; /* and another name of "tiny" */
/* Architecture and mixer together: DiT, SiT, NaLaDiT, NaLaSiT. */
extern const char *const nl_architecture_names[];

/* Defaults of docs/formats.md. */
void nl_config_init(nl_config *config);
void nl_config_free(nl_context *context, nl_config *config);
/* *copy, uninitialised before, owns its strings. */
nl_status nl_config_copy(nl_context *context, const nl_config *config, nl_config *copy);

/* "DiT", "SiT", "NaLaDiT", "NaLaSiT": architecture and attention. */
nl_status nl_config_set_architecture(nl_context *context, const char *name, nl_config *config);
/* "DiT, SiT, NaLaDiT, ... or MediatorSiT", for messages. */
const char *nl_config_architectures(char *text, size_t size);
/* By the size table (S, B, L, XL), otherwise hidden_size / 64. */
int nl_config_default_heads(int hidden_size);

/* "NaLaSiT-S/2", "DiT-XL/2", "SiT-6x256x4/2" (depth, hidden size, heads): architecture, attention, depth,
 * hidden size, heads, patch. */
nl_status nl_config_from_name(nl_context *context, const char *name, nl_config *config);
/* "NaLaSiT-S/2"; a custom size is named by its numbers. */
const char *nl_config_name(const nl_config *config, char *text, size_t size);

/* `config` comes initialised; keys in the JSON replace its values. Everything is range-checked, also in
 * combination. */
nl_status nl_config_parse(nl_context *context, const char *where, const char *json, size_t size,
                          nl_config *config);
/* The same of an option's value: a file, or the JSON itself, which begins with "{". */
nl_status nl_config_parse_over(nl_context *context, const char *text, nl_config *config);
nl_status nl_config_check(nl_context *context, const char *where, const nl_config *config);
/* The first key that makes two models of different kinds, or that trains them differently; NULL: none. Names of
 * classes and notes on the training are no difference. */
const char *nl_config_difference(const nl_config *a, const nl_config *b);
/* Allocated JSON text. */
nl_status nl_config_print(nl_context *context, const nl_config *config, char **json);

/* Initialises *config, which owns nothing after a failure.
 * From the metadata key "nalagen"; without it from names and shapes of the tensors, with what those cannot
 * tell taken from `architecture` ("DiT", ... or NULL: guessed from the file name, and said so in the log). */
nl_status nl_config_from_checkpoint(const nl_checkpoint *checkpoint, const char *architecture,
                                    nl_config *config);

/* The exact names of a configuration's classes, sorted; it points into the configuration. */
typedef struct nl_class_index nl_class_index;
nl_status nl_class_index_create(nl_context *context, const nl_config *config,
                                nl_class_index **index);
void nl_class_index_free(nl_context *context, nl_class_index *index);

/* Whether labels were dropped in training, or there are none: otherwise nothing was learnt for the null class, and the model
 * cannot be guided by it. */
bool nl_config_learnt_null(const nl_config *config);

/* Index of a class given as index, wnid or name, or as "number:N"; "null" is num_classes. names: of the configuration. */
nl_status nl_config_class(nl_context *context, const nl_config *config, const nl_class_index *names,
                          const char *text, int *index);
/* Whether text is the name of one class. Where it is none nothing is said: for trials. */
bool nl_config_names_class(const nl_config *config, const nl_class_index *names, const char *text);

/* Whether two entries name one class: a wnid or name that both have. */
bool nl_class_name_equal(const nl_class_name *a, const nl_class_name *b);
/* The first class that is another one in the other configuration, or that one of them lacks; -1: none, or one of them has
 * no names, so that nothing is known. */
int nl_config_other_class(const nl_config *a, const nl_config *b);
/* Rows of the table of classes. */
int nl_config_label_rows(const nl_config *config);
/* Channels of the head: in_channels, twice with learn_sigma. */
int nl_config_head_channels(const nl_config *config);
int64_t nl_config_tokens(const nl_config *config);
/* NaLa: what the L2 norm of a query is multiplied by in its exponent: 1, or 1 / sqrt(head size) for the root mean square. */
double nl_config_norm_scale(const nl_config *config);

#endif
