// Declarations of llguidance's C API, version 1.9.1: its wheel has the library and no header.
//
// The layouts must be the library's own: llguidance_test.cc compares version and default limits.
// Thread safety: a tokenizer may be used by several threads, a matcher by one at a time.
#ifndef HEARTH_WORKER_TEXT_LLGUIDANCE_H_
#define HEARTH_WORKER_TEXT_LLGUIDANCE_H_

#include <cstddef>
#include <cstdint>

namespace hearth {

inline constexpr char kLlgVersion[] = "llguidance@1.9.1";

extern "C" {

struct LlgTokenizer;
struct LlgMatcher;

// In a LlgConstraintInit, 0 means the default.
struct LlgParserLimits {
  size_t max_items_in_row;        // of the parser's table; 2,000
  uint64_t initial_lexer_fuel;    // to build the lexer; 1,000,000
  uint64_t step_lexer_fuel;       // of one mask; 200,000
  size_t step_max_items;          // of one mask; 50,000
  size_t max_lexer_states;        // of a matcher; 250,000
  size_t max_grammar_size;        // symbols; 500,000
  bool precompute_large_lexemes;  // true
  bool verbose_errors;            // errors quote grammar and text; true
};

struct LlgConstraintInit {
  const LlgTokenizer* tokenizer;
  uint32_t log_buffer_level, log_stderr_level;  // 0: no logging
  bool ff_tokens_ok, backtrack_ok;              // matchers ignore them
  LlgParserLimits limits;
};

// Writes at most `output_tokens_len` tokens and returns how many there are. Any thread.
using LlgTokenizeFn = size_t (*)(const void* user_data, const uint8_t* bytes, size_t bytes_len,
                                 uint32_t* output_tokens, size_t output_tokens_len);

struct LlgTokenizerInitV2 {
  size_t struct_size;  // sizeof(LlgTokenizerInitV2)
  uint32_t vocab_size;
  uint32_t tok_eos;
  const uint32_t* token_lens;  // [vocab_size]
  const uint8_t* token_bytes;  // of all tokens, in order
  const char* tokenizer_json;
  bool tokenize_assumes_string;
  LlgTokenizeFn tokenize_fn;
  bool use_approximate_greedy_tokenize_fn;
  const void* tokenize_user_data;
  const char* const* slices;      // null: the default ones
  const uint32_t* tok_eos_extra;  // [tok_eos_extra_count], end tokens besides tok_eos
  uint32_t tok_eos_extra_count;
};

const char* llg_get_version();  // "llguidance@1.9.1 derivre@..."
void llg_constraint_init_set_defaults(LlgConstraintInit* init, const LlgTokenizer* tokenizer);

// Null: `error_string` says why.
LlgTokenizer* llg_new_tokenizer_v2(const LlgTokenizerInitV2* init, char* error_string,
                                   size_t error_string_len);
void llg_free_tokenizer(LlgTokenizer* tokenizer);

// Never null; llg_matcher_get_error says whether it is of use.
LlgMatcher* llg_new_matcher(const LlgConstraintInit* init, const char* constraint_type,
                            const char* data);
LlgMatcher* llg_clone_matcher(const LlgMatcher* matcher);  // shares nothing that changes
void llg_free_matcher(LlgMatcher* matcher);

// Null: no error. A matcher that has one stays so. Valid as long as the matcher.
const char* llg_matcher_get_error(LlgMatcher* matcher);
// A bit for each token, the first in the lowest bit; end tokens if the text may end. 0, or -1.
int32_t llg_matcher_compute_mask_into(LlgMatcher* matcher, uint32_t* mask_dest,
                                      size_t mask_byte_len);
size_t llg_matcher_get_mask_byte_size(const LlgMatcher* matcher);
// 0, or -1.
int32_t llg_matcher_consume_tokens(LlgMatcher* matcher, const uint32_t* tokens, size_t n_tokens);
// How many of the tokens could be consumed, or -1.
int32_t llg_matcher_validate_tokens(LlgMatcher* matcher, const uint32_t* tokens, size_t n_tokens);
// The tokens that must come next: how many were written, or -1.
int32_t llg_matcher_compute_ff_tokens(LlgMatcher* matcher, uint32_t* output, size_t output_len);
bool llg_matcher_is_accepting(LlgMatcher* matcher);      // the text may end
bool llg_matcher_is_stopped(const LlgMatcher* matcher);  // nothing but an end token may come

}  // extern "C"

}  // namespace hearth

#endif  // HEARTH_WORKER_TEXT_LLGUIDANCE_H_
