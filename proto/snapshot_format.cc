#include "proto/snapshot_format.h"

#include <algorithm>
#include <cassert>
#include <tuple>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "proto/byte_codec.h"
#include "proto/restore_rule.h"

namespace hearth {
namespace {

constexpr absl::string_view kManifestMagic = "HRTHMANI";
constexpr absl::string_view kFileMagic = "HRTHSNAP";
constexpr uint32_t kVersion = 1;
constexpr size_t kDigestBytes = 8;
// Offsets of slices are multiples of a cache line, so that a mapped file can be read in place.
constexpr uint64_t kAlignment = 64;
// Magic, version, fingerprint bytes, manifest bytes, payload offset, file bytes.
constexpr size_t kPreludeBytes = 8 + 4 + 4 + 8 + 8 + 8;
constexpr size_t kMaxMaskBytes = 64;
// A fingerprint's 64 fields of at most 4 KiB text and 64 bytes name, with their framing.
constexpr uint64_t kMaxFingerprintBytes =
    kMaxFingerprintFields * (kMaxFingerprintTextBytes + kMaxFingerprintNameBytes + 16) + 64;

uint64_t AlignUp(uint64_t offset) { return (offset + kAlignment - 1) / kAlignment * kAlignment; }

absl::Status DataLoss(absl::string_view where, const absl::Status& why) {
  return absl::DataLossError(absl::StrCat(where, ": ", why.message()));
}

std::string GroupName(LayerGroup group) {
  return group == LayerGroup::kGlobal ? "global" : "local";
}

absl::Status CheckMagic(ByteReader* reader, absl::string_view magic, absl::string_view what) {
  auto found = reader->Bytes(magic.size(), absl::StrCat(what, " magic"));
  if (!found.ok()) return found.status();
  if (*found != magic) {
    return absl::DataLossError(
        absl::StrCat(what, " begins with \"", absl::CEscape(*found), "\", not with ", magic));
  }
  auto version = reader->U32(absl::StrCat(what, " version"));
  if (!version.ok()) return version.status();
  if (*version != kVersion) {
    return absl::DataLossError(
        absl::StrCat(what, " has version ", *version, ", known is ", kVersion));
  }
  return absl::OkStatus();
}

// The last 8 bytes are the digest of all before them; returns the bytes before.
absl::StatusOr<absl::string_view> StripDigest(absl::string_view bytes, absl::string_view what) {
  if (bytes.size() < kDigestBytes) {
    return absl::DataLossError(absl::StrCat(what, " has only ", bytes.size(), " bytes"));
  }
  const absl::string_view body = bytes.substr(0, bytes.size() - kDigestBytes);
  if (SliceDigest(body.data(), body.size()) != LoadU64(bytes.substr(body.size()))) {
    return absl::DataLossError(
        absl::StrCat(what, " does not match its digest at offset ", body.size()));
  }
  return body;
}

absl::StatusOr<ManifestObject> ReadObject(ByteReader* reader) {
  constexpr absl::string_view what = "manifest object";
  auto begin = reader->U32(what);
  if (!begin.ok()) return begin.status();
  auto tokens = reader->U32(what);
  if (!tokens.ok()) return tokens.status();
  auto group = reader->U32(what);
  if (!group.ok()) return group.status();
  if (*group > static_cast<uint32_t>(LayerGroup::kLocal)) {
    return absl::DataLossError(absl::StrCat(what, " has the unknown group ", *group));
  }
  auto slices = reader->U32(what);
  if (!slices.ok()) return slices.status();
  auto digests = reader->U64Array(*slices, what);
  if (!digests.ok()) return digests.status();
  ManifestObject object;
  object.id = {*begin, *tokens, static_cast<LayerGroup>(*group)};
  object.slice_digests = *std::move(digests);
  return object;
}

absl::Status ReadState(ByteReader* reader, Manifest* manifest, uint32_t* object_count) {
  auto fingerprint = reader->Bytes(manifest->fingerprint.size(), "manifest fingerprint");
  if (!fingerprint.ok()) return fingerprint.status();
  manifest->fingerprint = *DigestFromBytes(*fingerprint);
  uint32_t counts[5];
  constexpr absl::string_view kNames[5] = {"manifest token_count", "manifest next_position",
                                           "manifest cut_count", "manifest object_count",
                                           "manifest mask_bytes"};
  for (size_t i = 0; i < 5; ++i) {
    auto count = reader->U32(kNames[i]);
    if (!count.ok()) return count.status();
    counts[i] = *count;
  }
  manifest->token_count = counts[0];
  manifest->next_position = counts[1];
  *object_count = counts[3];
  if (manifest->token_count == 0 || manifest->token_count > kMaxPromptTokens) {
    return absl::DataLossError(absl::StrCat("manifest token_count is ", manifest->token_count,
                                            ", allowed are 1 to ", kMaxPromptTokens));
  }
  if (counts[4] > kMaxMaskBytes) {
    return absl::DataLossError(
        absl::StrCat("manifest mask_bytes is ", counts[4], ", the limit is ", kMaxMaskBytes));
  }
  auto mask = reader->Bytes(counts[4], "manifest attention_mask");
  if (!mask.ok()) return mask.status();
  manifest->attention_mask = std::string(*mask);
  auto ids = reader->U32Array(manifest->token_count, "manifest token_ids");
  if (!ids.ok()) return ids.status();
  manifest->token_ids = *std::move(ids);
  auto cuts = reader->U32Array(counts[2], "manifest cuts");
  if (!cuts.ok()) return cuts.status();
  manifest->cuts = *std::move(cuts);
  absl::Status status = ValidateCuts(manifest->cuts, manifest->token_count);
  if (!status.ok()) return DataLoss("manifest", status);
  return absl::OkStatus();
}

// Offsets of all slices and the end of the last one. Objects may differ from the needed set here
// (CheckRestorable names that), but each must have a size: a segment of the prompt, and a digest
// for each layer. Strictly ascending, so that their number, and with it the sum of sizes, is
// bounded: 2^17 objects of 2^10 layers of 2^35 bytes at the very most stay below 2^63.
absl::Status PlacePayload(SnapshotHeader* header) {
  const KvLayout& layout = header->layout;
  uint64_t end = header->payload_offset;
  const ManifestObject* previous = nullptr;
  for (const ManifestObject& object : header->manifest.objects) {
    const ObjectId& id = object.id;
    if (previous != nullptr &&
        std::tie(previous->id.begin, previous->id.group) >= std::tie(id.begin, id.group)) {
      return absl::DataLossError(
          absl::StrCat(GroupName(id.group), " object at ", id.begin, " is out of order"));
    }
    previous = &object;
    const uint64_t object_end = uint64_t{id.begin} + id.tokens;
    const size_t layers = layout.LayerCount(id.group);
    if (id.begin % layout.chunk_tokens != 0 || id.tokens == 0 || id.tokens > layout.chunk_tokens ||
        object_end > header->manifest.token_count || !layout.MayEndAt(id.tokens) ||
        object.slice_digests.size() != layers) {
      return absl::DataLossError(absl::StrCat(GroupName(id.group), " object [", id.begin, ", ",
                                              object_end, ") with ", object.slice_digests.size(),
                                              " slices is not a segment of this prompt and model"));
    }
    for (size_t i = 0; i < layers; ++i) {
      const uint64_t offset = AlignUp(end);
      header->slice_offsets.push_back(offset);
      end = offset + layout.SliceBytes(id.tokens);
    }
  }
  header->file_bytes = end;
  return absl::OkStatus();
}

std::string SlicePlace(const ObjectId& id, uint32_t layer, uint64_t offset) {
  return absl::StrCat(GroupName(id.group), " object [", id.begin, ", ", id.begin + id.tokens,
                      "), layer ", layer, ", offset ", offset);
}

bool AllZero(absl::string_view bytes) {
  return std::all_of(bytes.begin(), bytes.end(), [](char c) { return c == 0; });
}

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
    const size_t layers = layout.LayerCount(id.group);
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

std::string SerializeManifest(const Manifest& manifest) {
  assert(manifest.token_ids.size() == manifest.token_count);
  assert(manifest.attention_mask.size() <= kMaxMaskBytes);
  std::string out(kManifestMagic);
  AppendU32(&out, kVersion);
  out.append(reinterpret_cast<const char*>(manifest.fingerprint.data()),
             manifest.fingerprint.size());
  AppendU32(&out, manifest.token_count);
  AppendU32(&out, manifest.next_position);
  AppendU32(&out, static_cast<uint32_t>(manifest.cuts.size()));
  AppendU32(&out, static_cast<uint32_t>(manifest.objects.size()));
  AppendU32(&out, static_cast<uint32_t>(manifest.attention_mask.size()));
  out.append(manifest.attention_mask);
  AppendU32Array(&out, manifest.token_ids);
  AppendU32Array(&out, manifest.cuts);
  for (const ManifestObject& object : manifest.objects) {
    AppendU32(&out, object.id.begin);
    AppendU32(&out, object.id.tokens);
    AppendU32(&out, static_cast<uint32_t>(object.id.group));
    AppendU32(&out, static_cast<uint32_t>(object.slice_digests.size()));
    for (uint64_t digest : object.slice_digests) AppendU64(&out, digest);
  }
  AppendU64(&out, SliceDigest(out.data(), out.size()));
  return out;
}

absl::StatusOr<Manifest> ParseManifest(absl::string_view bytes) {
  auto body = StripDigest(bytes, "manifest");
  if (!body.ok()) return body.status();
  ByteReader reader(*body);
  absl::Status status = CheckMagic(&reader, kManifestMagic, "manifest");
  if (!status.ok()) return status;
  Manifest manifest;
  uint32_t object_count = 0;
  status = ReadState(&reader, &manifest, &object_count);
  if (!status.ok()) return status;
  // Of each group a chunk is one object, and each cut begins another.
  const uint64_t most =
      2 * (uint64_t{manifest.token_count} / kMinChunkTokens + manifest.cuts.size() + 2);
  if (object_count > most) {
    return absl::DataLossError(absl::StrCat("manifest names ", object_count, " objects; ",
                                            manifest.token_count, " tokens have at most ", most));
  }
  manifest.objects.reserve(object_count);
  for (uint32_t i = 0; i < object_count; ++i) {
    auto object = ReadObject(&reader);
    if (!object.ok()) return object.status();
    manifest.objects.push_back(*std::move(object));
  }
  if (reader.remaining() != 0) {
    return absl::DataLossError(absl::StrCat("manifest has ", reader.remaining(),
                                            " bytes too many at offset ", reader.offset()));
  }
  return manifest;
}

absl::StatusOr<std::string> BuildSnapshotHeader(const Fingerprint& fingerprint,
                                                const Manifest& manifest) {
  SnapshotHeader header;
  auto layout = fingerprint.Layout();
  if (!layout.ok()) return layout.status();
  if (manifest.fingerprint != fingerprint.digest()) {
    return absl::InvalidArgumentError(
        absl::StrCat("the manifest's fingerprint is ", DigestHex(manifest.fingerprint),
                     ", the fields' is ", DigestHex(fingerprint.digest())));
  }
  absl::Status status = ValidateManifest(manifest, *layout);
  if (!status.ok()) return status;
  const std::string fingerprint_bytes = fingerprint.Serialize();
  const std::string manifest_bytes = SerializeManifest(manifest);
  header.layout = *std::move(layout);
  header.manifest = manifest;
  const uint64_t header_bytes =
      kPreludeBytes + fingerprint_bytes.size() + manifest_bytes.size() + kDigestBytes;
  header.payload_offset = AlignUp(header_bytes);
  status = PlacePayload(&header);
  if (!status.ok()) return status;

  std::string out(kFileMagic);
  AppendU32(&out, kVersion);
  AppendU32(&out, static_cast<uint32_t>(fingerprint_bytes.size()));
  AppendU64(&out, manifest_bytes.size());
  AppendU64(&out, header.payload_offset);
  AppendU64(&out, header.file_bytes);
  assert(out.size() == kPreludeBytes);
  out += fingerprint_bytes;
  out += manifest_bytes;
  AppendU64(&out, SliceDigest(out.data(), out.size()));
  assert(out.size() == header_bytes);
  out.resize(header.payload_offset, '\0');
  return out;
}

absl::StatusOr<SnapshotHeader> ParseSnapshotHeader(absl::string_view prefix) {
  ByteReader reader(prefix);
  absl::Status status = CheckMagic(&reader, kFileMagic, "snapshot");
  if (!status.ok()) return status;
  auto fingerprint_bytes = reader.U32("snapshot fingerprint_bytes");
  if (!fingerprint_bytes.ok()) return fingerprint_bytes.status();
  uint64_t sizes[3];  // manifest, payload offset, file
  for (uint64_t& size : sizes) {
    auto value = reader.U64("snapshot prelude");
    if (!value.ok()) return value.status();
    size = *value;
  }
  if (*fingerprint_bytes > kMaxFingerprintBytes) {
    return absl::DataLossError(absl::StrCat("snapshot fingerprint_bytes is ", *fingerprint_bytes,
                                            ", the limit is ", kMaxFingerprintBytes));
  }
  auto fingerprint_part = reader.Bytes(*fingerprint_bytes, "snapshot fingerprint");
  if (!fingerprint_part.ok()) return fingerprint_part.status();
  auto manifest_part = reader.Bytes(sizes[0], "snapshot manifest");
  if (!manifest_part.ok()) return manifest_part.status();
  auto digest_part = reader.Bytes(kDigestBytes, "snapshot header digest");
  if (!digest_part.ok()) return digest_part.status();
  auto body = StripDigest(prefix.substr(0, reader.offset()), "snapshot header");
  if (!body.ok()) return body.status();
  const uint64_t payload_offset = AlignUp(reader.offset());
  auto padding = reader.Bytes(payload_offset - reader.offset(), "snapshot header padding");
  if (!padding.ok()) return padding.status();

  auto fingerprint = Fingerprint::Parse(*fingerprint_part);
  if (!fingerprint.ok()) return DataLoss("snapshot", fingerprint.status());
  auto layout = fingerprint->Layout();
  if (!layout.ok()) return DataLoss("snapshot", layout.status());
  auto manifest = ParseManifest(*manifest_part);
  if (!manifest.ok()) return DataLoss("snapshot", manifest.status());
  SnapshotHeader header;
  header.fingerprint = *std::move(fingerprint);
  header.layout = *std::move(layout);
  header.manifest = *std::move(manifest);
  header.payload_offset = payload_offset;
  if (header.manifest.fingerprint != header.fingerprint.digest()) {
    return absl::DataLossError("snapshot manifest names another fingerprint than its fields have");
  }
  status = PlacePayload(&header);
  if (!status.ok()) return status;
  if (header.payload_offset != sizes[1] || header.file_bytes != sizes[2] || !AllZero(*padding)) {
    return absl::DataLossError(absl::StrCat("snapshot announces payload_offset ", sizes[1],
                                            " and file_bytes ", sizes[2], ", its manifest gives ",
                                            header.payload_offset, " and ", header.file_bytes));
  }
  return header;
}

absl::Status VerifySnapshotFile(absl::string_view file) {
  auto header = ParseSnapshotHeader(file);
  if (!header.ok()) return header.status();
  if (file.size() != header->file_bytes) {
    return absl::DataLossError(
        absl::StrCat("snapshot has ", file.size(), " bytes, header says ", header->file_bytes));
  }
  size_t slice = 0;
  uint64_t end = header->payload_offset;
  for (const ManifestObject& object : header->manifest.objects) {
    const std::vector<uint32_t> layers = header->layout.LayersOf(object.id.group);
    const size_t bytes = header->layout.SliceBytes(object.id.tokens);
    for (size_t i = 0; i < layers.size(); ++i, ++slice) {
      const uint64_t offset = header->slice_offsets[slice];
      if (!AllZero(file.substr(end, offset - end))) {
        return absl::DataLossError(
            absl::StrCat("snapshot padding at offset ", end, " is not zero"));
      }
      if (SliceDigest(file.data() + offset, bytes) != object.slice_digests[i]) {
        return absl::DataLossError(absl::StrCat("snapshot slice does not match its digest: ",
                                                SlicePlace(object.id, layers[i], offset)));
      }
      end = offset + bytes;
    }
  }
  assert(slice == header->slice_offsets.size());
  return absl::OkStatus();
}

absl::Status ValidateManifest(const Manifest& manifest, const KvLayout& layout) {
  absl::Status status = layout.Validate();
  if (!status.ok()) return status;
  if (manifest.token_count == 0 || manifest.token_count > kMaxPromptTokens) {
    return absl::InvalidArgumentError(absl::StrCat("token_count is ", manifest.token_count,
                                                   ", allowed are 1 to ", kMaxPromptTokens));
  }
  if (!layout.MayEndAt(manifest.token_count)) {
    return absl::InvalidArgumentError(absl::StrCat("token_count is ", manifest.token_count,
                                                   ", not a multiple of chunk_tokens, ",
                                                   layout.chunk_tokens, ": pages are not divided"));
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
    // Both decide others, which come before them in order of name.
    const FieldDifference* first = &differences.front();
    for (const char* field : {"kv_dtype", "object_layout"}) {
      for (const FieldDifference& each : differences) {
        if (each.field == field) first = &each;
      }
    }
    return Mismatch(PartOf(first->field), absl::StrCat("\"", first->theirs, "\""),
                    absl::StrCat("\"", first->ours, "\""));
  }
  const std::string difference = NeededSetDifference(manifest, snapshot.layout);
  if (!difference.empty()) return Mismatch("KV", difference, "the needed set of the restore rule");
  return absl::OkStatus();
}

}  // namespace hearth
