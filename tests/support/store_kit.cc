#include "tests/support/store_kit.h"

#include <stdlib.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/base/attributes.h"
#include "absl/strings/str_cat.h"
#include "proto/restore_rule.h"

namespace hearth {
namespace {

ABSL_ATTRIBUTE_NO_SANITIZE_THREAD inline uint64_t Mix(uint64_t value) {
  value += 0x9E3779B97F4A7C15;
  value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9;
  value = (value ^ (value >> 27)) * 0x94D049BB133111EB;
  return value ^ (value >> 31);
}

// Returns the seed for the KV bytes of a segment. The seed covers everything that determines the
// store's key. It is not the key itself, because computing keys would take most of the tests' time.
uint64_t SegmentSeed(const Fingerprint& model, const KvLayout& layout, const KitPrompt& prompt,
                     const ObjectId& id) {
  uint64_t seed = 0;
  std::memcpy(&seed, model.digest().data(), sizeof(seed));
  for (const char c : prompt.tenant) seed = Mix(seed ^ static_cast<uint8_t>(c));
  const uint32_t end = id.begin + id.tokens;
  for (uint32_t i = 0; i < end; ++i) seed = Mix(seed ^ prompt.tokens[i]);
  for (const Segment& segment : SegmentsTo(end, layout.chunk_tokens)) {
    for (const uint32_t cut : CutsInside(segment, prompt.cuts, layout.exactness)) {
      seed = Mix(seed ^ (uint64_t{cut} + 1) << 32);
    }
  }
  return seed;
}

// The thread sanitizer must not instrument this function: it would check every word of memory that
// no other thread can access yet.
ABSL_ATTRIBUTE_NO_SANITIZE_THREAD void Fill(std::byte* memory, size_t bytes, uint64_t seed) {
  size_t i = 0;
  for (; i + sizeof(uint64_t) <= bytes; i += sizeof(uint64_t)) {
    const uint64_t word = Mix(seed + i);
    std::memcpy(memory + i, &word, sizeof(word));
  }
  const uint64_t last = Mix(seed + i);
  std::memcpy(memory + i, &last, bytes - i);
}

}  // namespace

Fingerprint KitModel::Make() const {
  std::vector<FingerprintField> fields = {{"chunk_tokens", uint64_t{chunk_tokens}},
                                          {"window", uint64_t{window}},
                                          {"exactness", std::string(exact ? "exact" : "portable")},
                                          {"layer_types", layer_types},
                                          {"object_layout", uint64_t{page_bytes > 0 ? 2u : 1u}},
                                          {"codec", std::string("raw")},
                                          {"weights", weights}};
  if (page_bytes > 0) {
    fields.push_back({"page_bytes", uint64_t{page_bytes}});
  } else {
    fields.push_back({"kv_heads", uint64_t{1}});
    fields.push_back({"head_dim", uint64_t{head_dim}});
    fields.push_back({"kv_dtype", std::string("float32")});
  }
  if (hidden_size > 0) {
    fields.push_back({"hidden_size", uint64_t{hidden_size}});
    fields.push_back({"intermediate_size", uint64_t{4} * hidden_size});
    fields.push_back({"heads", uint64_t{1}});
  }
  return Fingerprint::Create(std::move(fields)).value();
}

std::vector<uint32_t> KitTokens(uint64_t seed, uint32_t count) {
  std::vector<uint32_t> tokens(count);
  for (uint32_t i = 0; i < count; ++i) {
    tokens[i] = static_cast<uint32_t>(Mix(Mix(seed) + i) % 50000);
  }
  return tokens;
}

PrefixQuery KitQuery(const Fingerprint& model, const KitPrompt& prompt) {
  return PrefixQuery{model.digest(), prompt.tenant, prompt.tokens, prompt.cuts, ""};
}

SliceView KitSlice(const Fingerprint& model, const KitPrompt& prompt, const ObjectId& id,
                   uint32_t layer) {
  const KvLayout layout = model.Layout().value();
  const uint64_t seed = Mix(SegmentSeed(model, layout, prompt, id) ^ Mix(layer + 1));
  const size_t bytes = layout.SliceBytes(id.tokens);
  std::shared_ptr<std::byte> memory = AllocateSlice(bytes);
  Fill(memory.get(), bytes, seed);
  const absl::Span<const std::byte> view(memory.get(), bytes);
  return SliceView{std::move(memory), view};
}

PublishSpec KitSpec(const Fingerprint& model, const KitPrompt& prompt,
                    const std::vector<uint32_t>& boundaries, Durability durability) {
  const KvLayout layout = model.Layout().value();
  PublishSpec spec;
  spec.fingerprint = model;
  spec.tenant = prompt.tenant;
  spec.token_ids = prompt.tokens;
  spec.cuts = prompt.cuts;
  spec.boundaries = boundaries;
  spec.durability = durability;
  std::vector<ObjectId> ids;
  for (const uint32_t boundary : boundaries) {
    for (const ObjectId& id : NeededObjects(layout, boundary)) ids.push_back(id);
  }
  std::sort(ids.begin(), ids.end());
  ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
  for (const ObjectId& id : ids) {
    PublishObject object;
    object.id = id;
    for (const uint32_t layer : layout.LayersOf(id.group)) {
      const SliceView slice = KitSlice(model, prompt, id, layer);
      object.slice_digests.push_back(SliceDigest(slice.bytes.data(), slice.bytes.size()));
    }
    spec.objects.push_back(std::move(object));
  }
  return spec;
}

absl::Status KitPutAll(PublishSession* session, const PublishSpec& spec, const Fingerprint& model,
                       const KitPrompt& prompt) {
  const KvLayout layout = model.Layout().value();
  for (const uint32_t i : session->needed()) {
    const ObjectId& id = spec.objects[i].id;
    for (const uint32_t layer : layout.LayersOf(id.group)) {
      absl::Status status = session->PutSlice(i, layer, KitSlice(model, prompt, id, layer));
      if (!status.ok()) return status;
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<PublishResult> KitPublish(TieredStore* store, const Fingerprint& model,
                                         const KitPrompt& prompt,
                                         const std::vector<uint32_t>& boundaries,
                                         Durability durability) {
  const PublishSpec spec = KitSpec(model, prompt, boundaries, durability);
  absl::StatusOr<std::unique_ptr<PublishSession>> session = store->Publish(spec);
  if (!session.ok()) return session.status();
  absl::Status status = KitPutAll(session->get(), spec, model, prompt);
  if (!status.ok()) return status;
  return (*session)->Commit();
}

absl::Status KitReadAll(FetchSession* session, const Fingerprint& model, const KitPrompt& prompt) {
  const LookupPlan& plan = session->plan();
  const KvLayout layout = model.Layout().value();
  if (plan.usable_tokens > prompt.tokens.size() ||
      !std::equal(plan.token_ids.begin(), plan.token_ids.end(), prompt.tokens.begin()) ||
      plan.token_ids.size() != plan.usable_tokens) {
    return absl::InternalError("the plan's tokens are not the prompt's");
  }
  std::vector<ObjectId> ids;
  for (const PlannedObject& object : plan.objects) ids.push_back(object.id);
  if (ids != NeededObjects(layout, plan.usable_tokens)) {
    return absl::InternalError("the plan's objects are not what its boundary needs");
  }
  for (size_t i = 0; i < ids.size(); ++i) {
    for (const uint32_t layer : layout.LayersOf(ids[i].group)) {
      absl::StatusOr<SliceView> view = session->ReadSlice(i, layer);
      if (!view.ok()) return view.status();
      const SliceView expected = KitSlice(model, prompt, ids[i], layer);
      if (view->bytes.size() != expected.bytes.size() ||
          std::memcmp(view->bytes.data(), expected.bytes.data(), expected.bytes.size()) != 0) {
        return absl::InternalError(absl::StrCat("wrong bytes at object ", i, " layer ", layer));
      }
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<uint32_t> KitFetch(TieredStore* store, const Fingerprint& model,
                                  const KitPrompt& prompt, Tier* slowest) {
  absl::StatusOr<std::unique_ptr<FetchSession>> session =
      store->Fetch(KitQuery(model, prompt), 0, 0);
  if (!session.ok()) return session.status();
  if (slowest != nullptr) *slowest = (*session)->plan().slowest_tier;
  absl::Status status = KitReadAll(session->get(), model, prompt);
  if (!status.ok()) return status;
  return (*session)->plan().usable_tokens;
}

}  // namespace hearth
