#include "worker/text/grammar.h"

#include <malloc.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cassert>
#include <exception>
#include <string_view>
#include <system_error>
#include <thread>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include "proto/utf8.h"
#include "worker/text/grammar_trigger.h"
#include "worker/text/llguidance.h"
#include "worker/text/schema/schema_check.h"
#include "worker/text/schema/schema_walk.h"

namespace hearth {
namespace {

// Options for canonical text: if a client sends an answer back as chat history, the history has the
// same tokens as the answer. Without \u escapes, a text can only contain control characters that
// have a short escape, such as \n.
constexpr char kOptions[] =
    R"("x-guidance":{"whitespace_flexible":false,"item_separator":", ","key_separator":": ",)"
    R"("json_allowed_escapes":"nrbtf\\\"")";

// Returns `schema` with the options added. REQUIRES: `schema` is a JSON object.
std::string WithOptions(const std::string& schema, bool lenient) {
  assert(schema.size() >= 2 && schema.front() == '{' && schema.back() == '}');
  return absl::StrCat("{", kOptions, lenient ? ",\"lenient\":true}" : "}",
                      schema == "{}" ? "" : ",", schema.substr(1));
}

struct MatcherDeleter {
  void operator()(LlgMatcher* matcher) const { llg_free_matcher(matcher); }
};
using MatcherPtr = std::unique_ptr<LlgMatcher, MatcherDeleter>;

// Under these limits, computing a mask takes at most 10 ms. No schema of the recorded client
// requests (tests/data/clients) exceeds a limit.
void SetLimits(LlgParserLimits* limits) {
  limits->step_lexer_fuel = 20'000;
  limits->max_lexer_states = 30'000;
  limits->max_items_in_row = 2'000;
  limits->verbose_errors = false;
}

size_t EncodeFor(const void* tokenizer, const uint8_t* bytes, size_t bytes_len,
                 uint32_t* output_tokens, size_t output_tokens_len) {
  const std::string_view text(reinterpret_cast<const char*>(bytes), bytes_len);
  if (bytes_len > kMaxTextBytes || FindInvalidUtf8(text).has_value()) return 0;
  const std::vector<int32_t> ids = static_cast<const Tokenizer*>(tokenizer)->EncodePlain(text);
  for (size_t i = 0; i < std::min(ids.size(), output_tokens_len); ++i) {
    output_tokens[i] = static_cast<uint32_t>(ids[i]);
  }
  return ids.size();
}

// A compilation that takes longer than kUrgentTime continues at the nice value kLongNice. If all
// processors are busy, its thread then gets a tenth of the time that a thread of the engine gets,
// so that a large schema does not delay the tokens of other callers.
constexpr absl::Duration kUrgentTime = absl::Milliseconds(2);
constexpr int kLongNice = 10;

// Runs `work` on a new thread and waits for it. An unprivileged thread cannot raise its priority
// again, so the thread is not used again. Passes an exception of `work` on. kResourceExhausted: no
// thread could be created.
absl::Status RunOnOwnThread(absl::FunctionRef<void()> work) {
  std::atomic<pid_t> thread_id{0};
  absl::Notification started, done;
  std::exception_ptr thrown;
  std::thread thread;
  try {
    thread = std::thread([&] {
      thread_id = gettid();
      started.Notify();
      try {
        work();
      } catch (...) {  // an allocation failed
        thrown = std::current_exception();
      }
      done.Notify();
    });
  } catch (const std::system_error& error) {
    return absl::ResourceExhaustedError(
        absl::StrCat("grammar: no thread for the compilation; try later: ", error.what()));
  }
  started.WaitForNotification();
  if (!done.WaitForNotificationWithTimeout(kUrgentTime)) {
    setpriority(PRIO_PROCESS, static_cast<id_t>(thread_id), kLongNice);  // Linux: of this thread
  }
  thread.join();
  if (thrown != nullptr) std::rethrow_exception(thrown);
  return absl::OkStatus();
}

// Returns the number of bytes that malloc has handed out.
uint64_t AllocatedBytes() {
  const struct mallinfo2 info = mallinfo2();
  return info.uordblks + info.hblkhd;
}

}  // namespace

// llg_get_version returns "llguidance@1.9.1", a space, and the versions of other libraries.
std::string GrammarLibraryVersion() {
  const std::string_view version = llg_get_version();
  return std::string(version.substr(0, version.find(' ')));
}

struct GrammarEngine::Tables {
  Tables(const Tokenizer* text, LlgTokenizer* made, int32_t vocab_size)
      : tokenizer(text),
        library(made),
        tokens(std::min(text->size(), vocab_size)),
        mask_words((static_cast<size_t>(vocab_size) + 31) / 32) {}
  ~Tables() { llg_free_tokenizer(library); }
  Tables(const Tables&) = delete;
  Tables& operator=(const Tables&) = delete;

  // Returns a matcher, never null. If it cannot be used, llg_matcher_get_error gives the reason.
  MatcherPtr Match(const std::string& schema) const {
    LlgConstraintInit init = {};
    llg_constraint_init_set_defaults(&init, library);
    init.log_stderr_level = 0;
    SetLimits(&init.limits);
    return MatcherPtr(llg_new_matcher(&init, "json_schema", schema.c_str()));
  }

  const Tokenizer* const tokenizer;
  LlgTokenizer* const library;
  const int32_t tokens;     // number of tokens that the library knows
  const size_t mask_words;  // size of a token mask in 32-bit words
};

namespace {

// Returns the error of the library as a message for the client: what the client can change. Other
// errors are returned as they are, cut because they quote the schema.
std::string ClientText(absl::string_view error) {
  constexpr absl::string_view kSimplerPatterns =
      "the patterns need too much work; use simpler patterns";
  constexpr std::pair<absl::string_view, absl::string_view> kTexts[] = {
      {"NoExtensionBias", "no text satisfies the schema"},
      {"oneOf constraints are not supported",
       "oneOf is enforced only if its schemas have different types, or different constants for a "
       "required property; use anyOf"},
      {"lexer precomputation failed", kSimplerPatterns},
      {"too many expressions constructed", kSimplerPatterns},
      {"Unable to determine if regex is empty",
       "the patterns and formats that one string must obey need too much work; use one simple "
       "pattern"},
      {"can't determine if patternProperty regexes",
       "patternProperties must have simple patterns, so that no name matches two of them"},
      {"anyOf is empty", "no text satisfies the schema: an enum or anyOf must not be empty"},
      {"oneOf is empty", "no text satisfies the schema: a oneOf must not be empty"},
      {"min/maxProperties only supported",
       "minProperties and maxProperties are enforced only if all listed properties are required, "
       "or if a closed object must have exactly one more property"},
      {"consider making your grammar left-recursive",
       "the schema allows too many texts at the same time; use fewer optional properties and fewer "
       "anyOf"},
      {"schema too large", "the schema is too large after its $ref and allOf are merged"},
      {"panic:", "the grammar library cannot compile the schema; use a smaller schema"},
      {"too big (limit", "the schema is too large for the grammar library; use a smaller schema"},
      {"circular references with sibling keys",
       "a $ref that leads back to its own schema must have no other keywords beside it"}};
  for (const auto& [part, text] : kTexts) {
    if (absl::StrContains(error, part)) return std::string(text);
  }
  return CutText(error, 256);
}

// Returns the error of a matcher as one line, without a backtrace; empty: it has none.
std::string ErrorText(LlgMatcher* matcher) {
  const char* const error = llg_matcher_get_error(matcher);
  std::string text = error == nullptr ? "" : error;
  text = text.substr(0, text.find("<backtrace>"));
  std::replace(text.begin(), text.end(), '\n', ' ');
  absl::RemoveExtraAsciiWhitespace(&text);
  return std::string(absl::StripSuffix(text, " <non-verbose/>"));
}

absl::Status MatcherError(LlgMatcher* matcher) {
  return absl::InvalidArgumentError(
      absl::StrCat("grammar.json_schema: ", ClientText(ErrorText(matcher))));
}

class LibraryState final : public GrammarState {
 public:
  LibraryState(MatcherPtr matcher, int32_t tokens, size_t mask_words,
               std::shared_ptr<const void> owner)
      : owner_(std::move(owner)),
        matcher_(std::move(matcher)),
        tokens_(tokens),
        mask_(mask_words) {}

  absl::StatusOr<absl::Span<const uint32_t>> Allow() override {
    const size_t bytes = llg_matcher_get_mask_byte_size(matcher_.get());
    assert(bytes <= mask_.size() * sizeof(mask_[0]));
    if (llg_matcher_compute_mask_into(matcher_.get(), mask_.data(), bytes) != 0) {
      return MatcherError(matcher_.get());
    }
    return absl::MakeConstSpan(mask_);
  }

  absl::StatusOr<bool> Accept(int32_t token) override {
    const auto id = static_cast<uint32_t>(token);
    // The library may refuse a token that the mask allows: the token may exceed a limit.
    if (llg_matcher_consume_tokens(matcher_.get(), &id, 1) != 0)
      return MatcherError(matcher_.get());
    return true;
  }

  std::vector<int32_t> Forced(size_t most) override {
    std::vector<uint32_t> ids(most);
    const int32_t count = llg_matcher_compute_ff_tokens(matcher_.get(), ids.data(), most);
    assert(count <= static_cast<int64_t>(most));
    ids.resize(static_cast<size_t>(std::max(count, 0)));
    return {ids.begin(), ids.end()};
  }

  absl::StatusOr<size_t> CountAllowed(absl::Span<const int32_t> tokens) override {
    // An id that the library does not know would end the matcher.
    const auto is_unknown = [&](int32_t id) { return id < 0 || id >= tokens_; };
    const std::vector<uint32_t> ids(tokens.begin(),
                                    std::find_if(tokens.begin(), tokens.end(), is_unknown));
    const int32_t count = llg_matcher_validate_tokens(matcher_.get(), ids.data(), ids.size());
    if (count < 0) return MatcherError(matcher_.get());
    assert(static_cast<size_t>(count) <= ids.size());
    return static_cast<size_t>(count);
  }

  bool MustEnd() override { return llg_matcher_is_stopped(matcher_.get()); }

  std::unique_ptr<GrammarState> Clone() const override {
    return std::make_unique<LibraryState>(MatcherPtr(llg_clone_matcher(matcher_.get())), tokens_,
                                          mask_.size(), owner_);
  }

 private:
  const std::shared_ptr<const void> owner_;  // owns the tables that the matcher uses
  const MatcherPtr matcher_;
  const int32_t tokens_;  // number of tokens that the library knows
  std::vector<uint32_t> mask_;
};

class LibraryGrammar final : public Grammar {
 public:
  LibraryGrammar(GrammarSpec spec, MatcherPtr matcher, int32_t tokens, size_t mask_words,
                 const Tokenizer* tokenizer, std::shared_ptr<const void> tables)
      : Grammar(std::move(spec)),
        tables_(std::move(tables)),
        tokenizer_(tokenizer),
        tokens_(tokens),
        mask_words_(mask_words),
        matcher_(std::move(matcher)) {}

  std::unique_ptr<GrammarState> NewState() const override {
    auto state = std::make_unique<LibraryState>(MatcherPtr(llg_clone_matcher(matcher_.get())),
                                                tokens_, mask_words_, tables_);
    if (spec()->triggers.empty()) return state;
    return AfterTrigger(std::move(state), tokenizer_, mask_words_, spec());
  }

 private:
  const std::shared_ptr<const void> tables_;
  const Tokenizer* const tokenizer_;
  const int32_t tokens_;
  const size_t mask_words_;
  const MatcherPtr matcher_;  // state of an empty answer; its mask is already computed
};

class ContinuedGrammar final : public Grammar {
 public:
  ContinuedGrammar(GrammarSpec spec, std::unique_ptr<GrammarState> state)
      : Grammar(std::move(spec)), state_(std::move(state)) {}
  std::unique_ptr<GrammarState> NewState() const override { return state_->Clone(); }

 private:
  const std::unique_ptr<const GrammarState> state_;
};

absl::Status CheckTriggers(const std::vector<std::string>& triggers) {
  if (triggers.size() > kMaxTriggers) {
    return absl::InvalidArgumentError(absl::StrCat(
        "grammar.triggers: must have at most ", kMaxTriggers, " triggers; got ", triggers.size()));
  }
  for (const std::string& trigger : triggers) {
    const bool fits = !trigger.empty() && trigger.size() <= kMaxTriggerBytes &&
                      trigger.find('\n') == trigger.npos && trigger.front() != ' ' &&
                      !FindInvalidUtf8(trigger).has_value();
    if (fits) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        "grammar.triggers: each must be one line of UTF-8 of 1 to ", kMaxTriggerBytes,
        " bytes that does not begin with white space; got ", trigger.size(), " bytes"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::shared_ptr<const Grammar>> ContinueGrammar(
    const Grammar& grammar, absl::Span<const int32_t> drawn,
    absl::FunctionRef<absl::Status()> stop) {
  constexpr size_t kTokensPerStop = 64;
  std::unique_ptr<GrammarState> state = grammar.NewState();
  for (size_t i = 0; i < drawn.size(); ++i) {
    if (i % kTokensPerStop == 0) {
      if (absl::Status stopped = stop(); !stopped.ok()) return stopped;
    }
    const absl::StatusOr<bool> accepted = state->Accept(drawn[i]);
    if (accepted.ok() && *accepted) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        "the prompt's last ", drawn.size(), " tokens do not obey the grammar: token ", i, ": ",
        accepted.ok() ? "the text after a trigger breaks the schema"
                      : accepted.status().message()));
  }
  return std::make_shared<ContinuedGrammar>(*grammar.spec(), std::move(state));
}

GrammarEngine::GrammarEngine(const Tokenizer* tokenizer, std::vector<int32_t> eos,
                             int32_t vocab_size)
    : tokenizer_(tokenizer), eos_(std::move(eos)), vocab_size_(vocab_size) {}

void GrammarEngine::BuildTables() {
  const std::string version = GrammarLibraryVersion();
  if (!version.empty() && version != kLlgVersion) {
    built_status_ = absl::FailedPreconditionError(
        absl::StrCat("grammar: the library must be ", kLlgVersion, "; got ", version));
    return;
  }
  const uint64_t before = AllocatedBytes();
  const int32_t size = std::min(tokenizer_->size(), vocab_size_);
  std::vector<uint32_t> ends;
  for (const int32_t id : eos_) {
    if (id >= 0 && id < size) ends.push_back(static_cast<uint32_t>(id));
  }
  if (ends.empty()) {
    built_status_ = absl::FailedPreconditionError(
        "grammar: the model must have an end token that its tokenizer has, too");
    return;
  }
  // Special tokens get no bytes, so that no mask allows them as text.
  std::vector<uint32_t> lengths(static_cast<size_t>(size));
  std::string bytes;
  for (int32_t id = 0; id < size; ++id) {
    if (tokenizer_->IsSpecial(id) || std::count(ends.begin(), ends.end(), id) > 0) continue;
    const std::string_view token = tokenizer_->TokenBytes(id);
    lengths[static_cast<size_t>(id)] = static_cast<uint32_t>(token.size());
    bytes += token;
  }
  LlgTokenizerInitV2 init = {};
  init.struct_size = sizeof(init);
  init.vocab_size = static_cast<uint32_t>(size);
  init.tok_eos = ends.front();
  init.tok_eos_extra = ends.data() + 1;
  init.tok_eos_extra_count = static_cast<uint32_t>(ends.size() - 1);
  init.token_lens = lengths.data();
  init.token_bytes = reinterpret_cast<const uint8_t*>(bytes.data());
  init.tokenize_assumes_string = true;
  init.tokenize_fn = EncodeFor;
  init.tokenize_user_data = tokenizer_;
  char error[256] = "";
  LlgTokenizer* const made = llg_new_tokenizer_v2(&init, error, sizeof(error));
  if (made == nullptr) {
    built_status_ = absl::FailedPreconditionError(absl::StrCat("grammar: ", error));
    return;
  }
  assert(tables_ == nullptr);  // std::call_once
  tables_ = std::make_shared<const Tables>(tokenizer_, made, vocab_size_);
  bytes_ = std::max(AllocatedBytes(), before) - before;
}

absl::StatusOr<std::shared_ptr<const Grammar>> GrammarEngine::Compile(const GrammarSpec& spec) {
  absl::StatusOr<std::shared_ptr<const Grammar>> grammar = TryCompile(spec);
  ++(grammar.ok() ? compiled_ : refused_);
  return grammar;
}

absl::StatusOr<std::shared_ptr<const Grammar>> GrammarEngine::TryCompile(const GrammarSpec& spec) {
  if (absl::Status triggers = CheckTriggers(spec.triggers); !triggers.ok()) return triggers;
  std::call_once(built_, [this] { BuildTables(); });
  if (!built_status_.ok()) return built_status_;
  absl::StatusOr<std::shared_ptr<const Grammar>> grammar = absl::InternalError("not compiled");
  const absl::Status ran = RunOnOwnThread([&] { grammar = CompileSchema(spec); });
  return ran.ok() ? grammar : ran;
}

absl::StatusOr<std::shared_ptr<const Grammar>> GrammarEngine::CompileSchema(
    const GrammarSpec& spec) const {
  const auto make = [&](const std::string& schema) {
    return tables_->Match(WithOptions(schema, spec.lenient));
  };
  // Returns the error of compiling `schema`; empty: no error.
  const auto error_of = [&](const std::string& schema) {
    const MatcherPtr matcher = make(schema);
    return ErrorText(matcher.get());
  };
  absl::StatusOr<std::string> checked = CheckSchema(spec.json_schema, spec.lenient, error_of);
  if (!checked.ok()) return checked.status();
  MatcherPtr matcher = make(*checked);
  if (const std::string error = ErrorText(matcher.get()); !error.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "grammar.json_schema: ", FindError(*checked, error, error_of), ": ", ClientText(error)));
  }
  assert(tables_->tokens >= 0 && static_cast<size_t>(tables_->tokens) <= tables_->mask_words * 32);
  std::vector<uint32_t> mask(tables_->mask_words);
  if (llg_matcher_compute_mask_into(matcher.get(), mask.data(),
                                    llg_matcher_get_mask_byte_size(matcher.get())) != 0) {
    return MatcherError(matcher.get());
  }
  GrammarSpec kept = spec;
  kept.json_schema = *std::move(checked);
  return std::make_shared<LibraryGrammar>(std::move(kept), std::move(matcher), tables_->tokens,
                                          tables_->mask_words, tokenizer_, tables_);
}

}  // namespace hearth
