// Grammars make the text of an answer obey a JSON schema: a grammar computes which tokens may come
// next, and the sampler draws only these tokens.
//
//   GrammarEngine (one per tokenizer) --Compile--> Grammar (one per schema) --NewState-->
//   GrammarState (one per answer)
//
// The text is canonical: ", " and ": " between values, keys in the schema's order, and no \u
// escapes. The allowed tokens depend only on the schema and on the answer's tokens. schema_check.h
// has the limits of a schema. Limits during an answer count operations, not time, so that a request
// exceeds them on every worker or on none.
#ifndef HEARTH_WORKER_TEXT_GRAMMAR_H_
#define HEARTH_WORKER_TEXT_GRAMMAR_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "worker/text/tokenizer.h"

namespace hearth {

struct GrammarSpec {
  std::string json_schema;
  // If empty, the whole answer obeys the schema. Otherwise the answer is free text up to the first
  // line that begins with a trigger, after optional white space. From the trigger on, the answer
  // obeys the schema.
  std::vector<std::string> triggers;
  bool lenient = false;  // ignore keywords that cannot be enforced, instead of refusing the schema
};

inline constexpr size_t kMaxTriggers = 16, kMaxTriggerBytes = 64;

// GrammarState: the state of one answer in its grammar.
//
// Thread safety: one thread at a time. Methods return kInvalidArgument if the answer exceeds a
// limit; the answer must then end.
class GrammarState {
 public:
  virtual ~GrammarState() = default;

  // Returns a mask of the tokens that may come next: [vocab_size] bits, the first token in the
  // lowest bit of the first word. Empty: all tokens are allowed. End tokens are allowed where the
  // text may end. The mask is valid until the next call of a method.
  virtual absl::StatusOr<absl::Span<const uint32_t>> Allow() = 0;
  // Appends `token` to the answer. Returns false, and does not append the token, if the token
  // completes a trigger and contains text after it that breaks the schema. The caller then draws
  // again with a new mask from Allow. REQUIRES: Allow() allows `token`.
  virtual absl::StatusOr<bool> Accept(int32_t token) = 0;
  // Returns at most `most` tokens of the text that must come next. The model may draw other tokens
  // with the same text.
  virtual std::vector<int32_t> Forced(size_t most) = 0;
  // Returns how many of `tokens`, from the first one on, could be appended in this order.
  virtual absl::StatusOr<size_t> CountAllowed(absl::Span<const int32_t> tokens) = 0;
  // Returns whether only an end token may come next.
  virtual bool MustEnd() = 0;
  // Returns an independent state of the same answer.
  virtual std::unique_ptr<GrammarState> Clone() const = 0;
};

// Grammar: a compiled schema. Thread safety: all methods from any thread.
class Grammar {
 public:
  explicit Grammar(GrammarSpec spec)
      : spec_(std::make_shared<const GrammarSpec>(std::move(spec))) {}
  virtual ~Grammar() = default;

  // Returns the state of an empty answer.
  virtual std::unique_ptr<GrammarState> NewState() const = 0;
  // Returns the compiled GrammarSpec. Its schema contains only the keywords that are enforced.
  // Compiling this GrammarSpec again gives an equal grammar.
  const std::shared_ptr<const GrammarSpec>& spec() const { return spec_; }

 private:
  const std::shared_ptr<const GrammarSpec> spec_;
};

// Returns a grammar whose new states have accepted `drawn`, the first tokens of an answer. Calls
// `stop` before each 64 tokens, and returns its error. kInvalidArgument: `drawn` does not obey the
// grammar, or exceeds a limit.
absl::StatusOr<std::shared_ptr<const Grammar>> ContinueGrammar(
    const Grammar& grammar, absl::Span<const int32_t> drawn,
    absl::FunctionRef<absl::Status()> stop);

// Returns name and version of the grammar library, for saved states. Returns "" in a build without
// the library.
std::string GrammarLibraryVersion();

// GrammarEngine: compiles schemas for one tokenizer. The first Compile builds tables of the
// vocabulary in about a second, while other calls wait; the tables for Gemma use about 115 MiB.
//
// Thread safety: all methods from any thread. Ownership: `tokenizer` must outlive all grammars and
// states; grammars may outlive the engine.
class GrammarEngine {
 public:
  // `eos`: the model's end tokens. `vocab_size`: size of the model's vocabulary, which may be
  // larger than the tokenizer's.
  GrammarEngine(const Tokenizer* tokenizer, std::vector<int32_t> eos, int32_t vocab_size);
  GrammarEngine(const GrammarEngine&) = delete;
  GrammarEngine& operator=(const GrammarEngine&) = delete;

  // Checks and compiles a schema, and computes the first mask, in a few milliseconds. A compilation
  // that takes longer gets a low priority. kInvalidArgument names the path in the schema and the
  // limit. kFailedPrecondition gives the reason why this worker has no grammars.
  // kResourceExhausted: no thread could be created.
  absl::StatusOr<std::shared_ptr<const Grammar>> Compile(const GrammarSpec& spec);

  struct Stats {
    uint64_t compiled = 0, refused = 0;
    uint64_t bytes = 0;  // approximate size of the tables; 0: not built yet
  };
  Stats stats() const { return {compiled_, refused_, bytes_}; }

 private:
  struct Tables;  // grammar.cc
  absl::StatusOr<std::shared_ptr<const Grammar>> TryCompile(const GrammarSpec& spec);
  absl::StatusOr<std::shared_ptr<const Grammar>> CompileSchema(const GrammarSpec& spec) const;
  void BuildTables();

  const Tokenizer* const tokenizer_;
  const std::vector<int32_t> eos_;
  const int32_t vocab_size_;
  std::once_flag built_;
  std::shared_ptr<const Tables> tables_;  // set by BuildTables
  absl::Status built_status_;             // set by BuildTables
  std::atomic<uint64_t> compiled_{0}, refused_{0}, bytes_{0};
};

}  // namespace hearth

#endif  // HEARTH_WORKER_TEXT_GRAMMAR_H_
