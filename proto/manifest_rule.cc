// The rules for a manifest: the pair assertion of writers and readers, and the six-part check of a
// restore. The bytes are in snapshot_format.cc.
#include <algorithm>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "proto/restore_rule.h"
#include "proto/snapshot_format.h"

namespace hearth {
namespace {

constexpr absl::string_view kCausal = "causal";

// Empty when `objects` is the needed set, else the first difference in words.
std::string NeededSetDifference(const Manifest& manifest, const KvLayout& layout) {
  const std::vector<ObjectId> needed = NeededObjects(layout, manifest.token_count);
  for (size_t i = 0; i < needed.size(); ++i) {
    if (i == manifest.objects.size()) return absl::StrCat(ObjectName(needed[i]), " is missing");
    const ObjectId& id = manifest.objects[i].id;
    if (!(id == needed[i])) {
      return absl::StrCat("objects[", i, "] is the ", ObjectName(id), ", needed is the ",
                          ObjectName(needed[i]));
    }
    const size_t layers = layout.LayersOf(id.group).size();
    if (manifest.objects[i].slice_digests.size() != layers) {
      return absl::StrCat(ObjectName(id), " has ", manifest.objects[i].slice_digests.size(),
                          " slice digests for ", layers, " layers");
    }
  }
  if (manifest.objects.size() > needed.size()) {
    return absl::StrCat(ObjectName(manifest.objects[needed.size()].id), " is not needed");
  }
  return "";
}

absl::Status Mismatch(absl::string_view part, absl::string_view saved, absl::string_view running) {
  return absl::FailedPreconditionError(
      absl::StrCat("cannot restore: ", part, " differs: saved ", saved, ", running ", running));
}

// The part of a state that a fingerprint's field belongs to.
std::string PartOf(const std::string& field) {
  if (field == "adapters_sha256") return "adapter";
  if (field == "kv_dtype") return "dtype (model config field kv_dtype)";
  return absl::StrCat("model config field ", field);
}

uint64_t VocabSize(const Fingerprint& running) {
  for (const FingerprintField& field : running.fields()) {
    if (field.name != "vocab_size") continue;
    if (const auto* value = std::get_if<uint64_t>(&field.value)) return *value;
  }
  return UINT64_MAX;  // not told: nothing to check against
}

absl::Status CheckTokens(const Manifest& manifest, const Fingerprint& running) {
  const uint64_t vocab_size = VocabSize(running);
  for (size_t i = 0; i < manifest.token_ids.size(); ++i) {
    if (manifest.token_ids[i] >= vocab_size) {
      return Mismatch("input tokens", absl::StrCat("token_ids[", i, "] = ", manifest.token_ids[i]),
                      absl::StrCat("a vocabulary of ", vocab_size));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status ValidateManifest(const Manifest& manifest, const KvLayout& layout) {
  absl::Status status = layout.Validate();
  if (!status.ok()) return status;
  if (manifest.token_count == 0 || manifest.token_count > kMaxPromptTokens) {
    return absl::InvalidArgumentError(absl::StrCat("token_count is ", manifest.token_count,
                                                   ", allowed are 1 to ", kMaxPromptTokens));
  }
  if (manifest.token_ids.size() != manifest.token_count) {
    return absl::InvalidArgumentError(absl::StrCat("token_count is ", manifest.token_count,
                                                   " beside ", manifest.token_ids.size(),
                                                   " token ids"));
  }
  if (manifest.next_position != manifest.token_count) {
    return absl::InvalidArgumentError(
        absl::StrCat("next_position is ", manifest.next_position,
                     ", must be token_count = ", manifest.token_count));
  }
  if (manifest.attention_mask != kCausal) {
    return absl::InvalidArgumentError(absl::StrCat(
        "attention_mask is \"", absl::CEscape(manifest.attention_mask), "\", known is ", kCausal));
  }
  status = ValidateCuts(manifest.cuts, manifest.token_count);
  if (!status.ok()) return status;
  const std::string difference = NeededSetDifference(manifest, layout);
  if (!difference.empty()) return absl::InvalidArgumentError(difference);
  return absl::OkStatus();
}

absl::Status CheckRestorable(const SnapshotHeader& snapshot, const Fingerprint& running) {
  const Manifest& manifest = snapshot.manifest;
  if (manifest.token_count == 0 || manifest.token_count != manifest.token_ids.size()) {
    return Mismatch("token count", absl::StrCat(manifest.token_count),
                    absl::StrCat(manifest.token_ids.size(), " token ids"));
  }
  if (manifest.next_position != manifest.token_count) {
    return Mismatch("position index", absl::StrCat(manifest.next_position),
                    absl::StrCat(manifest.token_count));
  }
  if (manifest.attention_mask != kCausal) {
    return Mismatch("attention mask",
                    absl::StrCat("\"", absl::CEscape(manifest.attention_mask), "\""),
                    absl::StrCat("\"", kCausal, "\""));
  }
  absl::Status status = CheckTokens(manifest, running);
  if (!status.ok()) return status;
  const std::vector<FieldDifference> differences = Compare(running, snapshot.fingerprint);
  if (!differences.empty()) {
    // The dtype of keys and values decides others, which are named before it.
    const auto dtype = std::find_if(differences.begin(), differences.end(),
                                    [](const auto& each) { return each.field == "kv_dtype"; });
    const FieldDifference& first = dtype == differences.end() ? differences.front() : *dtype;
    return Mismatch(PartOf(first.field), absl::StrCat("\"", first.theirs, "\""),
                    absl::StrCat("\"", first.ours, "\""));
  }
  const std::string difference = NeededSetDifference(manifest, snapshot.layout);
  if (!difference.empty()) return Mismatch("KV", difference, "the needed set of the restore rule");
  return absl::OkStatus();
}

}  // namespace hearth
