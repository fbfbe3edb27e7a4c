/* The border to libjpeg: each function below decodes in one call. Neither keeps state, calls back into Rust, or lets an
 * error leave it: libjpeg's error handler jumps to the setjmp in guarded(), and only frames of C lie between. */

#include <setjmp.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#define JPEG_INTERNALS /* for the colour converter */
#include <jpeglib.h>

#include <jerror.h>

/* Kinds of failure; `Failure` in lib.rs lists the same numbers. */
enum kind { DECODED = 0, TRUNCATED = 1, CORRUPT = 2, UNSUPPORTED = 3, MEMORY = 4 };

/* A file may contain this many scans. Every scan is a pass over the whole image, even if it has only a few bytes. */
#define MAX_SCANS 100

/* Rows requested at once; libjpeg may return fewer. */
#define ROWS 16

/* The next three structures have counterparts in lib.rs. */
struct swinq_jpeg_header {
  uint32_t width;
  uint32_t height;
  uint32_t channels;     /* of the decoded samples: 3 (RGB) or 4 (CMYK, stored inverted) */
  uint64_t coefficients; /* bytes that libjpeg holds until the last scan has been read; 0 if there is only one */
};

struct swinq_jpeg_failure {
  char message[JMSG_LENGTH_MAX];
};

_Static_assert(JMSG_LENGTH_MAX == 200, "MESSAGE_LENGTH in lib.rs");

struct swinq_jpeg_input {
  const uint8_t *bytes;
  size_t length;
};

struct decoder {
  struct jpeg_decompress_struct info;
  struct jpeg_error_mgr errors;
  struct jpeg_source_mgr source;
  struct jpeg_progress_mgr progress;
  struct swinq_jpeg_failure *failure;
  enum kind kind;
  jmp_buf jump;
};

typedef void (*work)(struct decoder *decoder, void *argument);

static struct decoder *decoder_of(j_common_ptr info) { return info->client_data; }

/* Ends the call with a failure whose message is libjpeg's. */
static void fail(j_common_ptr info, enum kind kind) {
  struct decoder *decoder = decoder_of(info);
  info->err->format_message(info, decoder->failure->message);
  decoder->kind = kind;
  longjmp(decoder->jump, 1);
}

/* Ends the call with a failure whose message is `text`. */
static void fail_with(struct decoder *decoder, enum kind kind, const char *text) {
  snprintf(decoder->failure->message, JMSG_LENGTH_MAX, "%s", text);
  decoder->kind = kind;
  longjmp(decoder->jump, 1);
}

static void on_error(j_common_ptr info) {
  switch (info->err->msg_code) {
  case JERR_OUT_OF_MEMORY:
  case JERR_NO_BACKING_STORE:
    fail(info, MEMORY);
    break;
  case JERR_SOF_UNSUPPORTED:
  case JERR_ARITH_NOTIMPL:
  case JERR_BAD_PRECISION:
  case JERR_CONVERSION_NOTIMPL:
  case JERR_CCIR601_NOTIMPL:
  case JERR_FRACT_SAMPLE_NOTIMPL:
  case JERR_IMAGE_TOO_BIG:
    fail(info, UNSUPPORTED);
    break;
  default:
    fail(info, CORRUPT);
  }
}

/* Warnings that mean lost samples are errors. The others (bytes between segments, unusual headers) lose none, and the
 * image is complete. */
static void on_message(j_common_ptr info, int level) {
  if (level >= 0) return;
  switch (info->err->msg_code) {
  case JWRN_ARITH_BAD_CODE:
  case JWRN_HIT_MARKER:
  case JWRN_HUFF_BAD_CODE:
  case JWRN_JPEG_EOF:
  case JWRN_MUST_RESYNC:
    fail(info, CORRUPT);
  }
}

static void print_nothing(j_common_ptr info) { (void)info; }

static void ignore(j_decompress_ptr info) { (void)info; }

static void fail_at_end(j_decompress_ptr info) {
  fail_with(decoder_of((j_common_ptr)info), TRUNCATED, "the data ends before the end marker");
}

static boolean fail_to_fill(j_decompress_ptr info) {
  fail_at_end(info);
  return FALSE;
}

static void skip(j_decompress_ptr info, long count) {
  if (count <= 0) return;
  if ((size_t)count > info->src->bytes_in_buffer) fail_at_end(info);
  info->src->next_input_byte += count;
  info->src->bytes_in_buffer -= (size_t)count;
}

static void count_scans(j_common_ptr info) {
  if (((j_decompress_ptr)info)->input_scan_number > MAX_SCANS)
    fail_with(decoder_of(info), UNSUPPORTED, "more than 100 scans");
}

static void set_up(struct decoder *decoder, const struct swinq_jpeg_input *input) {
  decoder->source.next_input_byte = input->bytes;
  decoder->source.bytes_in_buffer = input->length;
  decoder->source.init_source = ignore;
  decoder->source.fill_input_buffer = fail_to_fill;
  decoder->source.skip_input_data = skip;
  decoder->source.resync_to_restart = jpeg_resync_to_restart;
  decoder->source.term_source = ignore;
  decoder->progress.progress_monitor = count_scans;
  jpeg_create_decompress(&decoder->info);
  decoder->info.src = &decoder->source;
  decoder->info.progress = &decoder->progress;
}

/* Reads the header and chooses the output: RGB, or CMYK for four components. The defaults of libjpeg are those of
 * Pillow: the accurate integer IDCT, and interpolated chroma. */
static void read_header(struct decoder *decoder, struct swinq_jpeg_header *header) {
  j_decompress_ptr info = &decoder->info;
  jpeg_read_header(info, TRUE);
  if (info->num_components == 2 || info->num_components > 4)
    fail_with(decoder, UNSUPPORTED, "the number of components is not 1, 3 or 4");
  header->width = info->image_width;
  header->height = info->image_height;
  header->channels = info->num_components == 4 ? 4 : 3;
  header->coefficients = 0;
  info->out_color_space = header->channels == 4 ? JCS_CMYK : JCS_RGB;
  info->dct_method = JDCT_ISLOW;
  info->do_fancy_upsampling = TRUE;
  if (!jpeg_has_multiple_scans(info)) return;
  for (int i = 0; i < info->num_components; i++) {
    const jpeg_component_info *component = &info->comp_info[i];
    uint64_t columns = component->width_in_blocks + (uint64_t)component->h_samp_factor;
    uint64_t rows = component->height_in_blocks + (uint64_t)component->v_samp_factor;
    header->coefficients += columns * rows * sizeof(JBLOCK);
  }
}

/* Calls `run(decoder, argument)` with a decoder that reads `input`. Returns the kind of failure. */
static int guarded(struct decoder *decoder, const struct swinq_jpeg_input *input, work run, void *argument) {
  if (setjmp(decoder->jump) == 0) {
    set_up(decoder, input);
    run(decoder, argument);
  }
  jpeg_destroy_decompress(&decoder->info);
  return decoder->kind;
}

/* Prepares `decoder` for guarded(). The decoder lives in the caller's frame, so that it keeps its value after a jump. */
static void prepare(struct decoder *decoder, struct swinq_jpeg_failure *failure) {
  memset(decoder, 0, sizeof *decoder);
  failure->message[0] = '\0';
  decoder->failure = failure;
  decoder->info.err = jpeg_std_error(&decoder->errors);
  decoder->info.client_data = decoder;
  decoder->errors.error_exit = on_error;
  decoder->errors.emit_message = on_message;
  decoder->errors.output_message = print_nothing;
}

static void only_header(struct decoder *decoder, void *argument) { read_header(decoder, argument); }

/* Reads the header of a file to *header. Returns a kind of failure. */
int swinq_jpeg_read_header(const struct swinq_jpeg_input *input, struct swinq_jpeg_header *header,
                           struct swinq_jpeg_failure *failure) {
  struct decoder decoder;
  prepare(&decoder, failure);
  return guarded(&decoder, input, only_header, header);
}

/* libjpeg's internal questions whether it has vector code for a step, and the processor runs it. */
extern int jsimd_can_idct_islow(void);
extern int jsimd_can_ycc_rgb(void);

enum { STEP = 32 };

static inline int16_t clamp(int16_t value) {
  value = value < 0 ? 0 : value;
  return value > 255 ? 255 : value;
}

/* JFIF's conversion of STEP pixels from YCbCr to RGB, with libjpeg's rounding, in 16-bit steps that a compiler turns into
 * vector code. The upper half of 2 * f * x, plus 1, halved, is the upper half of f * x, rounded. Writes one byte more
 * than the pixels have. */
static void ycc_to_rgb_step(const uint8_t *restrict luma, const uint8_t *restrict cb, const uint8_t *restrict cr,
                            uint8_t out[restrict 3 * STEP + 1]) {
  enum { RED = 26345, BLUE = -14942, GREEN_CB = -22554, GREEN_CR = 18734 };
  uint32_t pixels[STEP];
  for (int i = 0; i < STEP; i++) {
    int16_t y = luma[i], u = (int16_t)(cb[i] - 128), v = (int16_t)(cr[i] - 128);
    int16_t u2 = (int16_t)(2 * u), v2 = (int16_t)(2 * v);
    int16_t red = (int16_t)((int16_t)((v2 * RED) >> 16) + 1) >> 1;
    int16_t blue = (int16_t)((int16_t)((u2 * BLUE) >> 16) + 1) >> 1;
    int16_t green = (int16_t)((u * GREEN_CB + v * GREEN_CR + 32768) >> 16);
    uint16_t r = (uint16_t)clamp((int16_t)(y + v + red));
    uint16_t g = (uint16_t)clamp((int16_t)(y - v + green));
    uint16_t b = (uint16_t)clamp((int16_t)(y + u2 + blue));
    pixels[i] = (uint32_t)(uint16_t)(r | g << 8) | (uint32_t)b << 16;
  }
  for (int i = 0; i < STEP; i++) memcpy(out + 3 * i, &pixels[i], 4);
}

/* Replaces libjpeg's C code, which looks up tables, in builds without vector code. For little-endian processors. */
static void ycc_to_rgb(j_decompress_ptr info, JSAMPIMAGE input, JDIMENSION row, JSAMPARRAY output, int rows) {
  uint8_t pixels[3 * STEP + 1];
  for (; rows > 0; rows--, row++, output++) {
    JDIMENSION at = 0, width = info->output_width;
    for (; at + STEP <= width; at += STEP) {
      ycc_to_rgb_step(input[0][row] + at, input[1][row] + at, input[2][row] + at, pixels);
      memcpy(*output + 3 * (size_t)at, pixels, 3 * STEP);
    }
    if (at == width) continue;
    uint8_t rest[3][STEP] = {{0}};
    for (int i = 0; i < 3; i++) memcpy(rest[i], input[i][row] + at, width - at);
    ycc_to_rgb_step(rest[0], rest[1], rest[2], pixels);
    memcpy(*output + 3 * (size_t)at, pixels, 3 * (size_t)(width - at));
  }
}

static int is_little_endian(void) {
  const uint16_t one = 1;
  uint8_t first;
  memcpy(&first, &one, 1);
  return first == 1;
}

struct target {
  uint8_t *samples;
  size_t length;
};

static void all_rows(struct decoder *decoder, void *argument) {
  const struct target *target = argument;
  j_decompress_ptr info = &decoder->info;
  struct swinq_jpeg_header header;
  read_header(decoder, &header);
  jpeg_calc_output_dimensions(info);
  size_t row = (size_t)info->output_width * (size_t)info->output_components;
  if (info->output_components != (int)header.channels || row * info->output_height != target->length)
    fail_with(decoder, CORRUPT, "the buffer does not have the size of the image");
  jpeg_start_decompress(info);
  if (info->jpeg_color_space == JCS_YCbCr && info->out_color_space == JCS_RGB && !jsimd_can_ycc_rgb() &&
      is_little_endian())
    info->cconvert->color_convert = ycc_to_rgb;
  while (info->output_scanline < info->output_height) {
    JSAMPROW rows[ROWS];
    JDIMENSION count = info->output_height - info->output_scanline;
    if (count > ROWS) count = ROWS;
    for (JDIMENSION i = 0; i < count; i++) rows[i] = target->samples + row * (info->output_scanline + i);
    if (jpeg_read_scanlines(info, rows, count) == 0) fail_with(decoder, CORRUPT, "a row could not be decoded");
  }
  jpeg_finish_decompress(info);
}

/* Decodes a file to `length` bytes at `samples`: rows of the header's width and channels. Returns a kind of failure. */
int swinq_jpeg_decode(const struct swinq_jpeg_input *input, uint8_t *samples, size_t length,
                      struct swinq_jpeg_failure *failure) {
  struct decoder decoder;
  struct target target = {samples, length};
  prepare(&decoder, failure);
  return guarded(&decoder, input, all_rows, &target);
}

/* Whether libjpeg has vector code for the IDCT. */
int swinq_jpeg_has_simd(void) { return jsimd_can_idct_islow() != 0; }
