#include "proto/state_format.h"

#include <algorithm>
#include <cassert>
#include <tuple>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "proto/byte_codec.h"
#include "proto/plain_name.h"
#include "proto/restore_rule.h"
#include "proto/slice_hasher.h"
#include "proto/snapshot_format.h"
#include "proto/utf8.h"

namespace hearth {
namespace {

constexpr absl::string_view kMagic = "HRTHSTAT";
// File versions: neither Rules nor a Grammar; Rules only; a Grammar.
constexpr uint32_t kPlain = 1, kWithRules = 2, kWithGrammar = 3;
constexpr size_t kMaxListed = 1024;  // limit of token ids in each list of Rules
constexpr absl::string_view kDomain = "hearth.state.v1";
constexpr size_t kDigestBytes = 8;
// alignment of the snapshot in the file, so that the snapshot's slices stay aligned
constexpr uint64_t kAlignment = 64;
constexpr uint64_t kMaxBodyBytes = uint64_t{kMaxPromptTokens} * 4 + 32768 + kMaxStateSchemaBytes;

uint64_t AlignUp(uint64_t offset) { return (offset + kAlignment - 1) / kAlignment * kAlignment; }

absl::Status CheckGrammar(const SavedState::Grammar& grammar) {
  const auto is_trigger = [](const std::string& text) {
    return !text.empty() && text.size() <= kMaxStateTriggerBytes && !FindInvalidUtf8(text);
  };
  const bool fits = grammar.json_schema.size() <= kMaxStateSchemaBytes &&
                    grammar.triggers.size() <= kMaxStateTriggers &&
                    grammar.library.size() <= kMaxStateTextBytes &&
                    std::all_of(grammar.triggers.begin(), grammar.triggers.end(), is_trigger);
  if (!fits) {
    return absl::InvalidArgumentError(
        absl::StrCat("grammar: must have at most ", kMaxStateSchemaBytes, " bytes of schema, ",
                     kMaxStateTriggers, " triggers of 1 to ", kMaxStateTriggerBytes,
                     " bytes of UTF-8, and ", kMaxStateTextBytes, " bytes of library name"));
  }
  if (!grammar.json_schema.empty() || grammar == SavedState::Grammar()) return absl::OkStatus();
  return absl::InvalidArgumentError("grammar: triggers, lenient and library need a schema");
}

absl::Status CheckState(const SavedState& state) {
  const size_t tokens = state.token_ids.size();
  if (tokens < 2 || tokens > kMaxPromptTokens) {
    return absl::InvalidArgumentError(
        absl::StrCat("token_ids: must have 2 to ", kMaxPromptTokens, " ids; got ", tokens));
  }
  if (state.prompt_tokens < 1 || state.prompt_tokens > tokens) {
    return absl::InvalidArgumentError(
        absl::StrCat("prompt_tokens: must be 1 to ", tokens, "; got ", state.prompt_tokens));
  }
  if (state.drawn > kMaxDraws) {
    return absl::InvalidArgumentError(absl::StrCat("drawn: ", state.drawn, " is over 2^32"));
  }
  for (const std::string* name : {&state.request_id, &state.adapter}) {
    if (name->size() > kMaxStateTextBytes) {
      return absl::InvalidArgumentError(absl::StrCat("request_id or adapter: ", name->size(),
                                                     " bytes; the limit is ", kMaxStateTextBytes));
    }
    if (!IsPlainName(*name)) {
      return absl::InvalidArgumentError(
          "request_id or adapter: must have only letters, digits, \"-\", \"_\" and \".\"");
    }
  }
  if (!(state.temperature >= 0 && state.temperature <= 1e6) ||
      !(state.top_p >= 0 && state.top_p <= 1)) {
    return absl::InvalidArgumentError("temperature or top_p: out of range");
  }
  const SavedState::Rules& rules = state.rules;
  for (const double number :
       {rules.min_p, rules.repetition_penalty, rules.presence_penalty, rules.frequency_penalty}) {
    if (!(number >= -1e6 && number <= 1e6)) {
      return absl::InvalidArgumentError("min_p or a penalty: out of range");
    }
  }
  for (const auto* ids : {&rules.bias_ids, &rules.stop_ids, &rules.bad_ids}) {
    if (ids->size() > kMaxListed) {
      return absl::InvalidArgumentError(
          absl::StrCat("rules: a list must have at most ", kMaxListed, " ids; got ", ids->size()));
    }
  }
  if (absl::Status grammar = CheckGrammar(state.grammar); !grammar.ok()) return grammar;
  if (rules.biases.size() == rules.bias_ids.size()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("biases: must be ", rules.bias_ids.size(), "; got ", rules.biases.size()));
}

uint32_t VersionOf(const SavedState& state) {
  if (!state.grammar.json_schema.empty()) return kWithGrammar;
  return state.rules == SavedState::Rules() ? kPlain : kWithRules;
}

std::string BodyOf(const SavedState& state) {
  std::string body;
  AppendTextField(&body, kDomain);
  AppendTextField(&body, state.request_id);
  AppendTextField(&body, state.adapter);
  AppendIdsField(&body, state.token_ids);
  AppendIntegerField(&body, state.prompt_tokens);
  AppendIntegerField(&body, state.drawn);
  AppendNumberField(&body, state.temperature);
  AppendIntegerField(&body, state.top_k);
  AppendNumberField(&body, state.top_p);
  AppendIntegerField(&body, state.seed);
  if (VersionOf(state) == kPlain) return body;
  const SavedState::Rules& rules = state.rules;
  for (const double number :
       {rules.min_p, rules.repetition_penalty, rules.presence_penalty, rules.frequency_penalty}) {
    AppendNumberField(&body, number);
  }
  for (const auto* ids : {&rules.bias_ids, &rules.biases, &rules.stop_ids, &rules.bad_ids}) {
    AppendIdsField(&body, *ids);
  }
  AppendIntegerField(&body, rules.min_tokens);
  if (VersionOf(state) == kWithRules) return body;
  AppendTextField(&body, state.grammar.json_schema);
  AppendIntegerField(&body, state.grammar.lenient ? 1 : 0);
  AppendTextField(&body, state.grammar.library);
  for (const std::string& trigger : state.grammar.triggers) AppendTextField(&body, trigger);
  return body;
}

uint64_t SnapshotOffset(uint64_t body_bytes) {
  return AlignUp(kStatePreludeBytes + body_bytes + kDigestBytes);
}

uint32_t ReadU32(ByteReader* reader, absl::string_view what) {
  const uint64_t value = reader->IntegerField(what);
  if (value > UINT32_MAX) reader->Refuse(absl::StrCat(what, " is ", value));
  return static_cast<uint32_t>(value);
}

absl::StatusOr<SavedState> ParseBody(absl::string_view body) {
  ByteReader reader(body);
  const absl::string_view domain = reader.FieldOf(FieldType::kText, "state domain");
  SavedState state;
  state.request_id = std::string(reader.FieldOf(FieldType::kText, "state request_id"));
  state.adapter = std::string(reader.FieldOf(FieldType::kText, "state adapter"));
  state.token_ids = reader.IdsField("state token_ids");
  state.prompt_tokens = ReadU32(&reader, "state prompt length");
  state.drawn = reader.IntegerField("state drawn");
  state.temperature = reader.NumberField("state temperature");
  state.top_k = ReadU32(&reader, "state top_k");
  state.top_p = reader.NumberField("state top_p");
  state.seed = reader.IntegerField("state seed");
  if (reader.remaining() > 0) {
    SavedState::Rules& rules = state.rules;
    rules.min_p = reader.NumberField("state min_p");
    rules.repetition_penalty = reader.NumberField("state repetition_penalty");
    rules.presence_penalty = reader.NumberField("state presence_penalty");
    rules.frequency_penalty = reader.NumberField("state frequency_penalty");
    rules.bias_ids = reader.IdsField("state bias ids");
    rules.biases = reader.IdsField("state biases");
    rules.stop_ids = reader.IdsField("state stop ids");
    rules.bad_ids = reader.IdsField("state bad ids");
    rules.min_tokens = reader.IntegerField("state min_tokens");
  }
  if (reader.remaining() > 0) {
    SavedState::Grammar& grammar = state.grammar;
    grammar.json_schema = std::string(reader.FieldOf(FieldType::kText, "state json_schema"));
    grammar.lenient = reader.IntegerField("state lenient") != 0;
    grammar.library = std::string(reader.FieldOf(FieldType::kText, "state grammar library"));
    while (reader.status().ok() && reader.remaining() > 0 &&
           grammar.triggers.size() <= kMaxStateTriggers) {
      grammar.triggers.emplace_back(reader.FieldOf(FieldType::kText, "state trigger"));
    }
  }
  if (absl::Status ended = reader.End("state"); !ended.ok()) return ended;
  const absl::Status possible = CheckState(state);
  if (!possible.ok()) return absl::DataLossError(absl::StrCat("state ", possible.message()));
  if (domain != kDomain || BodyOf(state) != body) {
    return absl::DataLossError("state is not in its canonical encoding");
  }
  return state;
}

// Checks that the snapshot has exactly the tokens of the state without the last token.
absl::Status CheckTokens(const SavedState& state, const Manifest& manifest) {
  const auto differs = [](absl::string_view part, absl::string_view state_has,
                          absl::string_view snapshot_has) {
    return absl::FailedPreconditionError(absl::StrCat("cannot restore: ", part,
                                                      " differs: the state has ", state_has,
                                                      ", its snapshot ", snapshot_has));
  };
  const size_t count = state.token_ids.size() - 1;
  if (manifest.token_count != count || manifest.token_ids.size() != count) {
    return differs("token count", absl::StrCat(count, " computed tokens"),
                   absl::StrCat(manifest.token_count));
  }
  const auto [mine, its] =
      std::mismatch(manifest.token_ids.begin(), manifest.token_ids.end(), state.token_ids.begin());
  if (mine == manifest.token_ids.end()) return absl::OkStatus();
  return differs("input tokens",
                 absl::StrCat("token_ids[", mine - manifest.token_ids.begin(), "] = ", *its),
                 absl::StrCat(*mine));
}

}  // namespace

bool SavedState::Grammar::operator==(const Grammar& other) const {
  const auto all = [](const Grammar& grammar) {
    return std::tie(grammar.json_schema, grammar.triggers, grammar.lenient, grammar.library);
  };
  return all(*this) == all(other);
}

bool SavedState::Rules::operator==(const Rules& other) const {
  const auto all = [](const Rules& rules) {
    return std::tie(rules.min_p, rules.repetition_penalty, rules.presence_penalty,
                    rules.frequency_penalty, rules.bias_ids, rules.biases, rules.stop_ids,
                    rules.bad_ids, rules.min_tokens);
  };
  return all(*this) == all(other);
}

absl::Status CheckHasStates(const KvLayout& layout) {
  if (layout.exactness != Exactness::kInvariant) {
    return absl::FailedPreconditionError(
        absl::StrCat("saved states need --exactness invariant; this worker has the class ",
                     ExactnessName(layout.exactness),
                     ", in which decoding and prefill may compute different bits"));
  }
  if (!layout.quantization.is_on()) return absl::OkStatus();
  return absl::FailedPreconditionError(
      "saved states need chunks that are not quantized; this worker has --kv-cache quantized");
}

absl::StatusOr<StatePrelude> ParseStatePrelude(absl::string_view prefix) {
  ByteReader reader(prefix);
  const absl::string_view magic = reader.Bytes(kMagic.size(), "state magic");
  if (magic != kMagic) {
    reader.Refuse(absl::StrCat("a state must begin with ", kMagic, "; got \"",
                               absl::CHexEscape(magic), "\""));
  }
  const uint32_t version = reader.U32("state version");
  if (version < kPlain || version > kWithGrammar) {
    reader.Refuse(
        absl::StrCat("state has version ", version, ", known are ", kPlain, " to ", kWithGrammar));
  }
  const uint32_t body_bytes = reader.U32("state body_bytes");
  const uint64_t offset = reader.U64("state snapshot_offset");
  const uint64_t file_bytes = reader.U64("state file_bytes");
  if (body_bytes > kMaxBodyBytes || offset != SnapshotOffset(body_bytes) || file_bytes <= offset) {
    reader.Refuse(absl::StrCat("state header contradicts itself: body of ", body_bytes,
                               " bytes, snapshot at ", offset, ", file of ", file_bytes));
  }
  if (!reader.status().ok()) return reader.status();
  return StatePrelude{version, body_bytes, offset, file_bytes};
}

absl::StatusOr<std::string> BuildStateHeader(const SavedState& state, uint64_t snapshot_bytes) {
  if (absl::Status status = CheckState(state); !status.ok()) return status;
  const std::string body = BodyOf(state);
  const uint64_t offset = SnapshotOffset(body.size());
  std::string out(kMagic);
  AppendU32(&out, VersionOf(state));
  AppendU32(&out, static_cast<uint32_t>(body.size()));
  AppendU64(&out, offset);
  AppendU64(&out, offset + snapshot_bytes);
  assert(out.size() == kStatePreludeBytes);
  out += body;
  AppendDigest(&out);
  assert(out.size() <= offset);
  out.resize(offset, '\0');
  return out;
}

absl::StatusOr<StateFile> ParseStateFile(absl::string_view file) {
  const absl::StatusOr<StatePrelude> prelude = ParseStatePrelude(file);
  if (!prelude.ok()) return prelude.status();
  if (file.size() != prelude->file_bytes) {
    return absl::DataLossError(absl::StrCat("state has ", file.size(),
                                            " bytes, but its header says ", prelude->file_bytes));
  }
  const size_t header_bytes = kStatePreludeBytes + prelude->body_bytes + kDigestBytes;
  const auto sealed = StripDigest(file.substr(0, header_bytes), "state");
  if (!sealed.ok()) return sealed.status();
  const absl::string_view padding =
      file.substr(header_bytes, prelude->snapshot_offset - header_bytes);
  if (std::any_of(padding.begin(), padding.end(), [](char c) { return c != 0; })) {
    return absl::DataLossError("state padding is not zero");
  }
  absl::StatusOr<SavedState> state = ParseBody(sealed->substr(kStatePreludeBytes));
  if (!state.ok()) return state.status();
  if (VersionOf(*state) != prelude->version) {
    return absl::DataLossError(absl::StrCat("state of version ", prelude->version,
                                            " has the fields of version ", VersionOf(*state)));
  }
  StateFile parsed{*std::move(state), file.substr(prelude->snapshot_offset)};
  const absl::StatusOr<SnapshotHeader> snapshot = ParseSnapshotHeader(parsed.snapshot);
  if (!snapshot.ok()) return snapshot.status();
  if (absl::Status same = CheckTokens(parsed.state, snapshot->manifest); !same.ok()) return same;
  return parsed;
}

}  // namespace hearth
