// llguidance's C API in a build without the library (-DHEARTH_GRAMMARS=off). It makes no
// LlgTokenizer, so GrammarEngine refuses every schema and never calls the other functions.
#include <cstdio>

#include "worker/text/llguidance.h"

namespace hearth {

extern "C" {

const char* llg_get_version() { return ""; }
void llg_constraint_init_set_defaults(LlgConstraintInit* /*init*/,
                                      const LlgTokenizer* /*tokenizer*/) {}

LlgTokenizer* llg_new_tokenizer_v2(const LlgTokenizerInitV2* /*init*/, char* error_string,
                                   size_t error_string_len) {
  std::snprintf(error_string, error_string_len, "%s",
                "this worker was built without grammars (-DHEARTH_GRAMMARS=off)");
  return nullptr;
}
void llg_free_tokenizer(LlgTokenizer* /*tokenizer*/) {}

LlgMatcher* llg_new_matcher(const LlgConstraintInit* /*init*/, const char* /*constraint_type*/,
                            const char* /*data*/) {
  return nullptr;
}
LlgMatcher* llg_clone_matcher(const LlgMatcher* /*matcher*/) { return nullptr; }
void llg_free_matcher(LlgMatcher* /*matcher*/) {}

const char* llg_matcher_get_error(LlgMatcher* /*matcher*/) { return ""; }
int32_t llg_matcher_compute_mask_into(LlgMatcher* /*matcher*/, uint32_t* /*mask_dest*/,
                                      size_t /*mask_byte_len*/) {
  return -1;
}
size_t llg_matcher_get_mask_byte_size(const LlgMatcher* /*matcher*/) { return 0; }
int32_t llg_matcher_consume_tokens(LlgMatcher* /*matcher*/, const uint32_t* /*tokens*/,
                                   size_t /*n_tokens*/) {
  return -1;
}
int32_t llg_matcher_validate_tokens(LlgMatcher* /*matcher*/, const uint32_t* /*tokens*/,
                                    size_t /*n_tokens*/) {
  return -1;
}
int32_t llg_matcher_compute_ff_tokens(LlgMatcher* /*matcher*/, uint32_t* /*output*/,
                                      size_t /*output_len*/) {
  return -1;
}
bool llg_matcher_is_accepting(LlgMatcher* /*matcher*/) { return false; }
bool llg_matcher_is_stopped(const LlgMatcher* /*matcher*/) { return true; }

}  // extern "C"

}  // namespace hearth
