// Grammars: an answer's text obeys a JSON schema, because tokens that would break it are not drawn.
//
//   GrammarEngine (one for a tokenizer) -- Compile --> Grammar (a schema) -- NewState -->
//   GrammarState
//
// The text is canonical: ", " and ": " between values, keys in the schema's order, and characters
// as they are rather than as \u escapes. Which tokens may come next depends on the schema and the
// answer's tokens alone. schema_check.h has the limits of a schema. Limits during an answer are
// counted, not timed: a request meets them everywhere or nowhere.
#ifndef HEARTH_WORKER_TEXT_GRAMMAR_H_
#define HEARTH_WORKER_TEXT_GRAMMAR_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "worker/text/tokenizer.h"

namespace hearth {

struct GrammarSpec {
  std::string json_schema;
  // Empty: the whole answer obeys the schema. Else the answer is free text up to the first line
  // that begins with one of these, white space aside; it obeys the schema from there on.
  std::vector<std::string> triggers;
  bool lenient = false;  // ignore keywords that cannot be enforced
};

inline constexpr size_t kMaxTriggers = 16, kMaxTriggerBytes = 64;

// The position of one answer in its grammar.
//
// Thread safety: one thread at a time. Errors are kInvalidArgument: the answer met a limit, and can
// not go on.
class GrammarState {
 public:
  virtual ~GrammarState() = default;

  // The tokens that may come next, a bit for each token of the model, the first in the lowest bit.
  // Empty: all may. An end token may come where the text may end. Valid until the next call.
  virtual absl::StatusOr<absl::Span<const uint32_t>> Allow() = 0;
  // The answer continues with `token`, which Allow() allows. False: it does not, because the token
  // would end a trigger and break the schema at once; draw another, which Allow() allows now.
  virtual absl::StatusOr<bool> Accept(int32_t token) = 0;
  // The tokens that will probably come next, at most `most`, because only their text is allowed.
  virtual std::vector<int32_t> Forced(size_t most) = 0;
  // How many of the tokens may come next, in this order.
  virtual size_t CountAllowed(absl::Span<const int32_t> tokens) = 0;
  // Nothing but an end token may come next.
  virtual bool MustEnd() = 0;
};

// A checked schema. Thread safety: all methods from any thread.
class Grammar {
 public:
  explicit Grammar(GrammarSpec spec)
      : spec_(std::make_shared<const GrammarSpec>(std::move(spec))) {}
  virtual ~Grammar() = default;

  // At the beginning of an answer.
  virtual std::unique_ptr<GrammarState> NewState() const = 0;
  // What Compile got, its schema reduced to what is enforced: compiled again, it gives an equal
  // grammar.
  const std::shared_ptr<const GrammarSpec>& spec() const { return spec_; }

 private:
  const std::shared_ptr<const GrammarSpec> spec_;
};

// The text's tokens, with special pieces as plain characters. REQUIRES: as Tokenizer::Encode.
std::vector<int32_t> EncodePlain(const Tokenizer& tokenizer, std::string_view text);

// Free text up to one of the spec's triggers; from there on `inner`, which is at its beginning.
// `tokenizer` must outlive it. REQUIRES: there are triggers.
std::unique_ptr<GrammarState> AfterTrigger(std::unique_ptr<GrammarState> inner,
                                           const Tokenizer* tokenizer,
                                           std::shared_ptr<const GrammarSpec> spec);

// The library's name and version, for saved states; empty: this build has none.
std::string GrammarLibraryVersion();

// Compiles schemas for one tokenizer. Its tables, some 115 MiB for Gemma's vocabulary, are built by
// the first Compile, in about a second, while others wait.
//
// Thread safety: all methods from any thread. Ownership: `tokenizer` must outlive all grammars and
// states; the engine need not.
class GrammarEngine {
 public:
  // `eos`: the model's end tokens, which end an answer. `vocab_size`: the model's, which may be
  // greater than the tokenizer's.
  GrammarEngine(const Tokenizer* tokenizer, std::vector<int32_t> eos, int32_t vocab_size);
  GrammarEngine(const GrammarEngine&) = delete;
  GrammarEngine& operator=(const GrammarEngine&) = delete;

  // Checks and compiles a schema, and computes the first mask: milliseconds. kInvalidArgument names
  // the path in the schema and the limit; kFailedPrecondition: there are no grammars, and why.
  absl::StatusOr<std::shared_ptr<const Grammar>> Compile(const GrammarSpec& spec);

  struct Stats {
    uint64_t compiled = 0, refused = 0;
    uint64_t bytes = 0;  // of the tables, about; 0: not built yet
  };
  Stats stats() const { return {compiled_, refused_, bytes_}; }

 private:
  struct Tables;  // grammar.cc
  absl::StatusOr<std::shared_ptr<const Grammar>> TryCompile(const GrammarSpec& spec);
  void BuildTables();

  const Tokenizer* const tokenizer_;
  const std::vector<int32_t> eos_;
  const int32_t vocab_size_;
  std::once_flag built_;
  std::shared_ptr<const Tables> tables_;  // set once
  absl::Status built_status_;             // likewise
  std::atomic<uint64_t> compiled_{0}, refused_{0}, bytes_{0};
};

}  // namespace hearth

#endif  // HEARTH_WORKER_TEXT_GRAMMAR_H_
