// Declarations of llguidance's C API, version 1.9.1. The wheel contains the library but no header.
//
// The layouts must equal those of the library: llguidance_test.cc compares the version and the
// default limits. no_llguidance.cc has the API of a build without the library.
// Thread safety: several threads may use a tokenizer; one thread at a time may use a matcher.
#ifndef HEARTH_WORKER_TEXT_LLGUIDANCE_H_
#define HEARTH_WORKER_TEXT_LLGUIDANCE_H_

#include <cstddef>
#include <cstdint>

namespace hearth {

inline constexpr char kLlgVersion[] = "llguidance@1.9.1";

extern "C" {

struct LlgTokenizer;
struct LlgMatcher;

// Limits of a parser. Each comment ends with the default value. In a LlgConstraintInit, 0 selects
// the default value.
struct LlgParserLimits {
  size_t max_items_in_row;        // items in a row of the parser's table; 2,000
  uint64_t initial_lexer_fuel;    // operations to build the lexer; 1,000,000
  uint64_t step_lexer_fuel;       // operations of the lexer for one mask; 200,000
  size_t step_max_items;          // parser items for one mask; 50,000
  size_t max_lexer_states;        // lexer states of a matcher; 250,000
  size_t max_grammar_size;        // symbols of a grammar; 500,000
  bool precompute_large_lexemes;  // true
  bool verbose_errors;            // error messages quote grammar and text; true
};

struct LlgConstraintInit {
  const LlgTokenizer* tokenizer;
  uint32_t log_buffer_level, log_stderr_level;  // 0: off
  bool ff_tokens_ok, backtrack_ok;              // matchers ignore these two
  LlgParserLimits limits;
};

// Converts text to tokens, from any thread. Writes at most `output_tokens_len` tokens. Returns the
// number of tokens of the whole text, which may be larger.
using LlgTokenizeFn = size_t (*)(const void* user_data, const uint8_t* bytes, size_t bytes_len,
                                 uint32_t* output_tokens, size_t output_tokens_len);

struct LlgTokenizerInitV2 {
  size_t struct_size;  // sizeof(LlgTokenizerInitV2)
  uint32_t vocab_size;
  uint32_t tok_eos;
  const uint32_t* token_lens;  // [vocab_size]
  const uint8_t* token_bytes;  // bytes of all tokens, in order
  const char* tokenizer_json;
  bool tokenize_assumes_string;
  LlgTokenizeFn tokenize_fn;
  bool use_approximate_greedy_tokenize_fn;
  const void* tokenize_user_data;
  const char* const* slices;      // null: the default slices
  const uint32_t* tok_eos_extra;  // [tok_eos_extra_count], end tokens besides tok_eos
  uint32_t tok_eos_extra_count;
};

const char* llg_get_version();  // "llguidance@1.9.1 derivre@..."
void llg_constraint_init_set_defaults(LlgConstraintInit* init, const LlgTokenizer* tokenizer);

// Returns null on an error; `error_string` then has the reason.
LlgTokenizer* llg_new_tokenizer_v2(const LlgTokenizerInitV2* init, char* error_string,
                                   size_t error_string_len);
void llg_free_tokenizer(LlgTokenizer* tokenizer);

// Never returns null. If the matcher cannot be used, llg_matcher_get_error gives the reason.
LlgMatcher* llg_new_matcher(const LlgConstraintInit* init, const char* constraint_type,
                            const char* data);
LlgMatcher* llg_clone_matcher(const LlgMatcher* matcher);  // the copy shares no mutable data
void llg_free_matcher(LlgMatcher* matcher);

// Returns null if there is no error. An error is permanent. The text is valid as long as the
// matcher.
const char* llg_matcher_get_error(LlgMatcher* matcher);
// Writes a bit for each token, the first token in the lowest bit. The bits of end tokens are set if
// the text may end. Returns 0; returns -1 on an error.
int32_t llg_matcher_compute_mask_into(LlgMatcher* matcher, uint32_t* mask_dest,
                                      size_t mask_byte_len);
size_t llg_matcher_get_mask_byte_size(const LlgMatcher* matcher);
// Returns 0; returns -1 on an error.
int32_t llg_matcher_consume_tokens(LlgMatcher* matcher, const uint32_t* tokens, size_t n_tokens);
// Returns how many of the tokens could be consumed; returns -1 on an error.
int32_t llg_matcher_validate_tokens(LlgMatcher* matcher, const uint32_t* tokens, size_t n_tokens);
// Writes tokens that must come next. Returns how many it wrote; returns -1 on an error.
int32_t llg_matcher_compute_ff_tokens(LlgMatcher* matcher, uint32_t* output, size_t output_len);
bool llg_matcher_is_accepting(LlgMatcher* matcher);      // the text may end
bool llg_matcher_is_stopped(const LlgMatcher* matcher);  // only an end token may come next

}  // extern "C"

}  // namespace hearth

#endif  // HEARTH_WORKER_TEXT_LLGUIDANCE_H_
