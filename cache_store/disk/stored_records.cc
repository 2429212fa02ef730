#include "cache_store/disk/stored_records.h"

#include <algorithm>
#include <cassert>

#include "absl/strings/str_cat.h"
#include "proto/byte_codec.h"

namespace hearth {
namespace {

// The first four bytes of a record. Never change a tag: tags are stored on disk.
constexpr uint32_t kObjectTag = 0x344A424F;    // "OBJ4" in ASCII
constexpr uint32_t kManifestTag = 0x3450524D;  // "MRP4" in ASCII

bool ReadFlag(ByteReader* reader, absl::string_view what) {
  const uint32_t value = reader->U32(what);
  if (value > 1) reader->Refuse(absl::StrCat(what, " must be 0 or 1; got ", value));
  return value == 1;
}

}  // namespace

std::string SerializeObject(const ObjectRecord& object) {
  // ParseObject() refuses a record that breaks one of these.
  assert(object.layers.size() <= kMaxRecordLayers);
  assert(object.slice_digests.size() == object.layers.size());
  std::string bytes;
  AppendU32(&bytes, kObjectTag);
  AppendU64(&bytes, object.number);
  bytes.append(reinterpret_cast<const char*>(object.key.data()), object.key.size());
  AppendU32(&bytes, object.id.begin);
  AppendU32(&bytes, object.id.tokens);
  AppendU32(&bytes, static_cast<uint32_t>(object.id.group));
  AppendU64(&bytes, object.slice_bytes);
  AppendU32(&bytes, object.in_table ? 1 : 0);
  AppendU32(&bytes, static_cast<uint32_t>(object.layers.size()));
  AppendU32Array(&bytes, object.layers);
  for (const uint64_t digest : object.slice_digests) AppendU64(&bytes, digest);
  AppendDigest(&bytes);
  return bytes;
}

absl::StatusOr<ObjectRecord> ParseObject(absl::string_view bytes) {
  absl::StatusOr<absl::string_view> body = StripDigest(bytes, "object record");
  if (!body.ok()) return body.status();
  ByteReader reader(*body);
  ObjectRecord object;
  if (reader.U32("object tag") != kObjectTag) reader.Refuse("object record: unknown tag");
  object.number = reader.U64("object number");
  const absl::string_view key = reader.Bytes(object.key.size(), "object key");
  if (key.size() == object.key.size()) std::copy(key.begin(), key.end(), object.key.begin());
  object.id.begin = reader.U32("object begin");
  object.id.tokens = reader.U32("object tokens");
  const uint32_t group = reader.U32("object group");
  if (group > 1) reader.Refuse("object record: unknown group");
  object.id.group = static_cast<LayerGroup>(group);
  object.slice_bytes = reader.U64("slice bytes");
  object.in_table = ReadFlag(&reader, "object record: in-table flag");
  const uint32_t layers = reader.U32("layer count");
  if (layers > kMaxRecordLayers) reader.Refuse("object record: too many layers");
  object.layers = reader.U32Array(layers, "layers");
  object.slice_digests = reader.U64Array(layers, "slice digests");
  if (absl::Status ended = reader.End("object record"); !ended.ok()) return ended;
  assert(object.layers.size() == object.slice_digests.size());
  return object;
}

std::string SerializeManifestRecord(const ManifestRecord& record) {
  // ParseManifestRecord() refuses a record that breaks one of these.
  assert(record.tenant.size() <= kMaxTenantBytes);
  assert(record.objects.size() == record.manifest.objects.size());
  std::string bytes;
  AppendU32(&bytes, kManifestTag);
  AppendU64(&bytes, record.number);
  AppendU64(&bytes, record.created_unix_s);
  AppendU64(&bytes, record.expires_unix_s);
  AppendU32(&bytes, record.inherited ? 1 : 0);
  AppendU32(&bytes, static_cast<uint32_t>(record.tenant.size()));
  bytes += record.tenant;
  AppendU32(&bytes, static_cast<uint32_t>(record.objects.size()));
  for (const uint64_t object : record.objects) AppendU64(&bytes, object);
  bytes += SerializeManifest(record.manifest);
  AppendDigest(&bytes);
  return bytes;
}

absl::StatusOr<ManifestRecord> ParseManifestRecord(absl::string_view bytes) {
  absl::StatusOr<absl::string_view> body = StripDigest(bytes, "manifest record");
  if (!body.ok()) return body.status();
  ByteReader reader(*body);
  ManifestRecord record;
  if (reader.U32("manifest tag") != kManifestTag) reader.Refuse("manifest record: unknown tag");
  record.number = reader.U64("manifest number");
  record.created_unix_s = reader.U64("time of creation");
  record.expires_unix_s = reader.U64("time of expiry");
  record.inherited = ReadFlag(&reader, "manifest record: inherited flag");
  const uint32_t tenant_bytes = reader.U32("tenant length");
  if (tenant_bytes > kMaxTenantBytes) reader.Refuse("manifest record: tenant too long");
  record.tenant = std::string(reader.Bytes(tenant_bytes, "tenant"));
  record.objects = reader.U64Array(reader.U32("object count"), "object numbers");
  const absl::string_view rest = reader.Bytes(reader.remaining(), "manifest");
  if (!reader.status().ok()) return reader.status();
  absl::StatusOr<Manifest> manifest = ParseManifest(rest);
  if (!manifest.ok()) return manifest.status();
  record.manifest = *std::move(manifest);
  if (record.objects.size() != record.manifest.objects.size()) {
    return absl::DataLossError(
        "manifest record: the object numbers do not match the manifest's objects");
  }
  return record;
}

std::string NumberKey(uint64_t number) {
  std::string key(8, '\0');
  for (int i = 7; i >= 0; --i, number >>= 8) key[i] = static_cast<char>(number & 0xFF);
  return key;
}

std::string SliceKey(uint64_t number, uint32_t layer) {
  std::string key = NumberKey(number);
  for (int shift = 24; shift >= 0; shift -= 8) key += static_cast<char>((layer >> shift) & 0xFF);
  return key;
}

absl::StatusOr<uint64_t> ParseNumberKey(absl::string_view key) {
  if (key.size() < 8) return absl::DataLossError("the key of a record is shorter than 8 bytes");
  uint64_t number = 0;
  for (int i = 0; i < 8; ++i) number = number << 8 | static_cast<uint8_t>(key[i]);
  return number;
}

}  // namespace hearth
