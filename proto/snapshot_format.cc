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
// Slices start at multiples of a cache line, so that a mapped file can be used without copying.
constexpr uint64_t kAlignment = 64;
// Bytes of magic, version, fingerprint length, manifest length, payload offset and file length.
constexpr size_t kPreludeBytes = 8 + 4 + 4 + 8 + 8 + 8;
constexpr size_t kMaxMaskBytes = 64;
// 64 fields, each with at most 4 KiB of text, 64 bytes of name and their length prefixes.
constexpr uint64_t kMaxFingerprintBytes =
    kMaxFingerprintFields * (kMaxFingerprintTextBytes + kMaxFingerprintNameBytes + 16) + 64;

uint64_t AlignUp(uint64_t offset) { return (offset + kAlignment - 1) / kAlignment * kAlignment; }

absl::Status DataLoss(absl::string_view where, const absl::Status& why) {
  return absl::DataLossError(absl::StrCat(where, ": ", why.message()));
}

void CheckMagic(ByteReader* reader, absl::string_view magic, absl::string_view what) {
  const absl::string_view found = reader->Bytes(magic.size(), absl::StrCat(what, " magic"));
  if (found != magic) {
    reader->Refuse(
        absl::StrCat(what, " begins with \"", absl::CEscape(found), "\", not with ", magic));
  }
  const uint32_t version = reader->U32(absl::StrCat(what, " version"));
  if (version != kVersion) {
    reader->Refuse(absl::StrCat(what, " has version ", version, ", known is ", kVersion));
  }
}

ManifestObject ReadObject(ByteReader* reader) {
  constexpr absl::string_view what = "manifest object";
  ManifestObject object;
  object.id.begin = reader->U32(what);
  object.id.tokens = reader->U32(what);
  const uint32_t group = reader->U32(what);
  if (group > static_cast<uint32_t>(LayerGroup::kLocal)) {
    reader->Refuse(absl::StrCat(what, " has the unknown group ", group));
  }
  object.id.group = static_cast<LayerGroup>(group);
  object.slice_digests = reader->U64Array(reader->U32(what), what);
  return object;
}

// Reads all fields of a manifest before its objects. Returns the number of objects.
uint32_t ReadState(ByteReader* reader, Manifest* manifest) {
  const absl::string_view fingerprint =
      reader->Bytes(manifest->fingerprint.size(), "manifest fingerprint");
  std::copy(fingerprint.begin(), fingerprint.end(), manifest->fingerprint.begin());
  manifest->token_count = reader->U32("manifest token_count");
  manifest->next_position = reader->U32("manifest next_position");
  const uint32_t cuts = reader->U32("manifest cut_count");
  const uint32_t objects = reader->U32("manifest object_count");
  const uint32_t mask_bytes = reader->U32("manifest mask_bytes");
  if (manifest->token_count == 0 || manifest->token_count > kMaxPromptTokens) {
    reader->Refuse(absl::StrCat("manifest token_count is ", manifest->token_count,
                                ", allowed are 1 to ", kMaxPromptTokens));
  }
  if (mask_bytes > kMaxMaskBytes) {
    reader->Refuse(
        absl::StrCat("manifest mask_bytes is ", mask_bytes, ", the limit is ", kMaxMaskBytes));
  }
  manifest->attention_mask = std::string(reader->Bytes(mask_bytes, "manifest attention_mask"));
  manifest->token_ids = reader->U32Array(manifest->token_count, "manifest token_ids");
  manifest->cuts = reader->U32Array(cuts, "manifest cuts");
  const absl::Status status = ValidateCuts(manifest->cuts, manifest->token_count);
  if (!status.ok()) reader->Refuse(DataLoss("manifest", status).message());
  return objects;
}

// Computes the file offset of every slice, and the end of the file. The objects may differ from the
// needed objects (CheckRestorable reports that), but each object must be a segment of the prompt
// and have one digest per layer, so that its size is known. Objects must be strictly ascending.
// This limits their number, and so the sum of their sizes: 2^17 objects x 2^10 layers x 2^35 bytes
// is below 2^63.
absl::Status PlacePayload(SnapshotHeader* header) {
  const KvLayout& layout = header->layout;
  uint64_t end = header->payload_offset;
  const ManifestObject* previous = nullptr;
  for (const ManifestObject& object : header->manifest.objects) {
    const ObjectId& id = object.id;
    if (previous != nullptr &&
        std::tie(previous->id.begin, previous->id.group) >= std::tie(id.begin, id.group)) {
      return absl::DataLossError(absl::StrCat(ObjectName(id), " is out of order"));
    }
    previous = &object;
    const uint64_t object_end = uint64_t{id.begin} + id.tokens;
    const size_t layers = layout.LayerCount(id.group);
    if (id.begin % layout.chunk_tokens != 0 || id.tokens == 0 || id.tokens > layout.chunk_tokens ||
        object_end > header->manifest.token_count || !layout.MayEndAt(id.tokens) ||
        object.slice_digests.size() != layers) {
      return absl::DataLossError(absl::StrCat(ObjectName(id), " with ", object.slice_digests.size(),
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

bool AllZero(absl::string_view bytes) {
  return std::all_of(bytes.begin(), bytes.end(), [](char c) { return c == 0; });
}

constexpr absl::string_view kCausal = "causal";

// Compares the objects of a manifest with the objects that its boundary needs. Returns "" if they
// are equal, else a description of the first difference.
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

// Returns the name, for errors, of the state field that contains this fingerprint field.
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
  return UINT64_MAX;  // the vocabulary size is unknown, so no token id is too large
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
  AppendDigest(&out);
  return out;
}

absl::StatusOr<Manifest> ParseManifest(absl::string_view bytes) {
  auto body = StripDigest(bytes, "manifest");
  if (!body.ok()) return body.status();
  ByteReader reader(*body);
  CheckMagic(&reader, kManifestMagic, "manifest");
  Manifest manifest;
  const uint32_t objects = ReadState(&reader, &manifest);
  // Each group has at most one object for every chunk and one more for every cut.
  const uint64_t most =
      2 * (uint64_t{manifest.token_count} / kMinChunkTokens + manifest.cuts.size() + 2);
  if (objects > most) {
    reader.Refuse(absl::StrCat("manifest names ", objects, " objects; ", manifest.token_count,
                               " tokens have at most ", most));
  }
  if (!reader.status().ok()) return reader.status();
  manifest.objects.reserve(objects);
  for (uint32_t i = 0; i < objects && reader.status().ok(); ++i) {
    manifest.objects.push_back(ReadObject(&reader));
  }
  if (absl::Status ended = reader.End("manifest"); !ended.ok()) return ended;
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
  AppendDigest(&out);
  assert(out.size() == header_bytes);
  out.resize(header.payload_offset, '\0');
  return out;
}

absl::StatusOr<SnapshotHeader> ParseSnapshotHeader(absl::string_view prefix) {
  ByteReader reader(prefix);
  CheckMagic(&reader, kFileMagic, "snapshot");
  const uint32_t fingerprint_bytes = reader.U32("snapshot fingerprint_bytes");
  const uint64_t manifest_bytes = reader.U64("snapshot manifest_bytes");
  const uint64_t announced_offset = reader.U64("snapshot payload_offset");
  const uint64_t announced_bytes = reader.U64("snapshot file_bytes");
  if (fingerprint_bytes > kMaxFingerprintBytes) {
    reader.Refuse(absl::StrCat("snapshot fingerprint_bytes is ", fingerprint_bytes,
                               ", the limit is ", kMaxFingerprintBytes));
  }
  const absl::string_view fingerprint_part =
      reader.Bytes(fingerprint_bytes, "snapshot fingerprint");
  const absl::string_view manifest_part = reader.Bytes(manifest_bytes, "snapshot manifest");
  reader.Bytes(kDigestBytes, "snapshot header digest");
  if (!reader.status().ok()) return reader.status();
  auto body = StripDigest(prefix.substr(0, reader.offset()), "snapshot header");
  if (!body.ok()) return body.status();
  const uint64_t payload_offset = AlignUp(reader.offset());
  const absl::string_view padding =
      reader.Bytes(payload_offset - reader.offset(), "snapshot header padding");
  if (!reader.status().ok()) return reader.status();
  auto fingerprint = Fingerprint::Parse(fingerprint_part);
  if (!fingerprint.ok()) return DataLoss("snapshot", fingerprint.status());
  auto layout = fingerprint->Layout();
  if (!layout.ok()) return DataLoss("snapshot", layout.status());
  auto manifest = ParseManifest(manifest_part);
  if (!manifest.ok()) return DataLoss("snapshot", manifest.status());
  SnapshotHeader header;
  header.fingerprint = *std::move(fingerprint);
  header.layout = *std::move(layout);
  header.manifest = *std::move(manifest);
  header.payload_offset = payload_offset;
  if (header.manifest.fingerprint != header.fingerprint.digest()) {
    return absl::DataLossError("snapshot manifest: its fingerprint differs from the file's fields");
  }
  if (absl::Status placed = PlacePayload(&header); !placed.ok()) return placed;
  if (payload_offset != announced_offset || header.file_bytes != announced_bytes ||
      !AllZero(padding)) {
    return absl::DataLossError(absl::StrCat(
        "snapshot announces payload_offset ", announced_offset, " and file_bytes ", announced_bytes,
        ", its manifest gives ", payload_offset, " and ", header.file_bytes));
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
        return absl::DataLossError(
            absl::StrCat("snapshot slice does not match its digest: ", ObjectName(object.id),
                         ", layer ", layers[i], ", offset ", offset));
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
    return absl::InvalidArgumentError(absl::StrCat(
        "token_count is ", manifest.token_count, ", must be a multiple of chunk_tokens, ",
        layout.chunk_tokens, ": pages cannot be divided"));
  }
  if (manifest.token_ids.size() != manifest.token_count) {
    return absl::InvalidArgumentError(absl::StrCat("token_count is ", manifest.token_count,
                                                   ", but there are ", manifest.token_ids.size(),
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
    // These two fields determine other fields that are listed before them, so report a difference
    // in them first.
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
