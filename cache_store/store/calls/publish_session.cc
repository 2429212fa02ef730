#include "cache_store/store/calls/publish_session.h"

#include <algorithm>
#include <cassert>
#include <cstring>
#include <map>

#include "absl/strings/str_cat.h"
#include "proto/caller_gone.h"
#include "proto/prefix_key.h"
#include "proto/restore_rule.h"

namespace hearth {
namespace {

// Objects that the boundaries of one publish name, one by one: a boundary in each of the 4,096
// chunks of 16 tokens of a 64k prompt would name 8 million. Each costs some 200 ns here, and a
// fraction of that under the lock.
constexpr uint64_t kMaxNamedObjects = uint64_t{1} << 20;
// A begin that takes more memory counts as staged: a prompt of a million tokens in small chunks
// takes 40 MiB. So much of each stream is in no budget.
constexpr uint64_t kFreeBeginBytes = uint64_t{64} << 10;

// Of the announcement, its chain and the bookkeeping for each object; the caller has another copy
// of the objects.
uint64_t BeginBytes(const PublishSpec& spec) {
  constexpr size_t kObjectBytes =
      2 * sizeof(PublishObject) + sizeof(PublishItem) + sizeof(KeyedSegment) + 3 * sizeof(uint64_t);
  uint64_t bytes = (spec.token_ids.size() + spec.cuts.size()) * sizeof(uint32_t) +
                   spec.objects.size() * kObjectBytes;
  for (const PublishObject& object : spec.objects) {
    bytes += object.slice_digests.size() * (sizeof(uint64_t) + sizeof(SliceView));
  }
  return bytes > kFreeBeginBytes ? bytes : 0;
}

absl::Status CommittedAlready() {
  return absl::FailedPreconditionError("the publish was committed already");
}

absl::Status CheckPrompt(const PublishSpec& spec, const KvLayout& layout) {
  if (absl::Status status = CheckPrefix(spec.token_ids, spec.cuts); !status.ok()) return status;
  if (spec.tenant.empty() || spec.tenant.size() > kMaxTenantBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("tenant: ", spec.tenant.size(), " bytes, must be 1 to ", kMaxTenantBytes));
  }
  const uint32_t tokens = static_cast<uint32_t>(spec.token_ids.size());
  if (spec.boundaries.empty()) return absl::InvalidArgumentError("boundaries: none");
  const std::vector<uint32_t> ends = StepEnds(tokens, spec.cuts, layout.chunk_tokens);
  uint32_t previous = 0;
  uint64_t named = 0;
  for (const uint32_t boundary : spec.boundaries) {
    named += boundary / layout.chunk_tokens + 1;
    if (named > kMaxNamedObjects) {
      return absl::InvalidArgumentError(absl::StrCat(
          "boundaries: ", spec.boundaries.size(), " of them name more than ", kMaxNamedObjects,
          " objects together; keep fewer, or choose a larger chunk"));
    }
    if (boundary <= previous || boundary > tokens) {
      return absl::InvalidArgumentError(absl::StrCat("boundaries: ", boundary, " must be above ",
                                                     previous, " and at most ", tokens));
    }
    if (CutsAreKeyed(layout.exactness) && !std::binary_search(ends.begin(), ends.end(), boundary)) {
      return absl::InvalidArgumentError(
          absl::StrCat("boundaries: ", boundary, " is neither a multiple of ", layout.chunk_tokens,
                       " nor a cut nor the prompt's end"));
    }
    previous = boundary;
  }
  return absl::OkStatus();
}

std::string ObjectText(const ObjectId& id) {
  return absl::StrCat(id.group == LayerGroup::kGlobal ? "global" : "local", " [", id.begin, ", ",
                      uint64_t{id.begin} + id.tokens, ")");
}

}  // namespace

absl::StatusOr<std::unique_ptr<PublishSession>> PublishSessionImpl::Begin(const PublishParts& parts,
                                                                          PublishSpec spec) {
  StoreState* const state = &parts.commit.core->state;
  auto session = std::make_unique<PublishSessionImpl>(parts, std::move(spec));
  PublishContent& content = session->content_;
  {
    StateLock lock(state);
    content.model = state->fingerprints.Learn(content.spec.fingerprint, content.spec.tenant);
  }
  if (content.model == nullptr) return content.spec.fingerprint.Layout().status();
  absl::Status status = session->Prepare();
  if (!status.ok()) return status;
  parts.loader->LoadFor(content.chain, content.model->layout);
  {
    StateLock lock(state);
    status = session->PlanNeeded();
  }
  if (!status.ok()) return status;
  return session;
}

absl::Status PublishSessionImpl::Prepare() {
  const KvLayout& layout = content_.model->layout;
  if (absl::Status status = CheckPrompt(content_.spec, layout); !status.ok()) return status;
  if (absl::Status status = Stage(BeginBytes(content_.spec)); !status.ok()) return status;
  content_.chain = MakeChain(
      layout, RootKey(content_.spec.fingerprint.digest(), content_.spec.tenant, core_->secret),
      content_.spec.token_ids, content_.spec.cuts, content_.spec.boundaries.back(),
      content_.spec.boundaries, content_.spec.stopped);
  if (!content_.chain.is_whole) return CallerGone();
  std::map<ObjectId, size_t> announced;
  for (size_t i = 0; i < content_.spec.objects.size(); ++i) {
    if (!announced.emplace(content_.spec.objects[i].id, i).second) {
      return absl::InvalidArgumentError(
          absl::StrCat("objects: ", ObjectText(content_.spec.objects[i].id), " twice"));
    }
  }
  content_.items.resize(content_.spec.objects.size());
  content_.needs.reserve(content_.spec.boundaries.size());
  std::vector<bool> wanted(content_.spec.objects.size(), false);
  for (const uint32_t boundary : content_.spec.boundaries) {
    std::vector<size_t>& needs = content_.needs.emplace_back();
    for (const ObjectId& id : NeededObjects(layout, boundary)) {
      const auto it = announced.find(id);
      if (it == announced.end()) {
        return absl::InvalidArgumentError(absl::StrCat("objects: boundary ", boundary, " needs ",
                                                       ObjectText(id), ", which is not announced"));
      }
      needs.push_back(it->second);
      if (wanted[it->second]) continue;
      wanted[it->second] = true;
      const PublishObject& object = content_.spec.objects[it->second];
      PublishItem& item = content_.items[it->second];
      item.segment = content_.chain.EndingAt(id.begin + id.tokens, layout.chunk_tokens);
      item.layers = layout.LayersOf(id.group);
      item.slice_bytes = layout.SliceBytes(id.tokens);
      const bool without = object.absent && object.slice_digests.empty();
      if (!without && object.slice_digests.size() != item.layers.size()) {
        return absl::InvalidArgumentError(
            absl::StrCat("objects: ", ObjectText(id), " has ", object.slice_digests.size(),
                         " digests, its group has ", item.layers.size(), " layers"));
      }
    }
  }
  for (size_t i = 0; i < wanted.size(); ++i) {
    if (!wanted[i]) {
      return absl::InvalidArgumentError(
          absl::StrCat("objects: no boundary needs ", ObjectText(content_.spec.objects[i].id)));
    }
    assert(content_.items[i].segment != nullptr);
  }
  return absl::OkStatus();
}

std::vector<uint32_t> PublishContent::CutsUpTo(uint32_t boundary) const {
  std::vector<uint32_t> cuts;
  if (!CutsAreKeyed(model->layout.exactness)) return cuts;
  for (const uint32_t cut : spec.cuts) {
    if (cut <= boundary) cuts.push_back(cut);
  }
  return cuts;
}

absl::Status PublishSessionImpl::Stage(uint64_t bytes) {
  const uint64_t most_of_tenant = core_->options.quotas.Of(content_.spec.tenant).max_bytes;
  const absl::Status status = parts_.staged->Reserve(content_.spec.tenant, bytes, most_of_tenant);
  if (!status.ok()) {
    core_->Count(Counter::kPublishesRefusedStaged);
    return status;
  }
  staged_bytes_ += bytes;
  return absl::OkStatus();
}

absl::StatusOr<std::shared_ptr<std::byte>> PublishSessionImpl::AllocateSlice(size_t bytes) {
  if (absl::Status status = Stage(bytes); !status.ok()) return status;
  std::shared_ptr<std::byte> memory = core_->tiers.AllocateSlice(bytes);
  allocated_ = memory.get();
  return memory;
}

absl::Status PublishSessionImpl::Put(uint32_t object, uint32_t layer, SliceView slice,
                                     std::optional<uint64_t> digest) {
  assert(!digest.has_value() || slice.owner != nullptr);
  if (committed_) return CommittedAlready();
  if (object >= content_.items.size() || !content_.items[object].needed) {
    return absl::InvalidArgumentError(absl::StrCat("object ", object, " was not asked for"));
  }
  PublishItem& item = content_.items[object];
  const auto it = std::lower_bound(item.layers.begin(), item.layers.end(), layer);
  if (it == item.layers.end() || *it != layer) {
    return absl::InvalidArgumentError(
        absl::StrCat("layer ", layer, " is not of the group of object ", object));
  }
  const size_t place = static_cast<size_t>(it - item.layers.begin());
  if (item.staged[place].owner != nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat("object ", object, ", layer ", layer, ": put twice"));
  }
  if (slice.bytes.size() != item.slice_bytes) {
    return absl::InvalidArgumentError(absl::StrCat("object ", object, ", layer ", layer, ": ",
                                                   slice.bytes.size(), " bytes, must be ",
                                                   item.slice_bytes));
  }
  if (slice.owner == nullptr || std::exchange(allocated_, nullptr) != slice.owner.get()) {
    if (absl::Status status = Stage(slice.bytes.size()); !status.ok()) return status;
  }
  if (slice.owner == nullptr) {
    std::shared_ptr<std::byte> memory = core_->tiers.AllocateSlice(slice.bytes.size());
    std::memcpy(memory.get(), slice.bytes.data(), slice.bytes.size());
    slice = SliceView{memory, {memory.get(), slice.bytes.size()}};
  }
  // After the copy, so that what was verified is what is kept.
  if (!digest.has_value()) digest = SliceDigest(slice.bytes.data(), slice.bytes.size());
  if (*digest != content_.spec.objects[object].slice_digests[place]) {
    core_->Count(Counter::kDigestMismatches);
    return absl::DataLossError(absl::StrCat("object ", object, ", layer ", layer,
                                            ": bytes do not match the announced digest"));
  }
  received_bytes_ += slice.bytes.size();
  item.staged[place] = std::move(slice);
  ++item.staged_slices;
  return absl::OkStatus();
}

absl::StatusOr<PublishResult> PublishSessionImpl::Commit() {
  if (committed_) return CommittedAlready();
  if (absl::Status loaded = parts_.loader->WaitUntilLoaded(); !loaded.ok()) {
    timed_out_loading_ = true;
    core_->Count(Counter::kPublishesRefusedLoading);
    // Not kUnavailable: the caller would take the store for gone.
    return absl::ResourceExhaustedError(loaded.message());
  }
  committed_ = true;
  const Stopwatch stopwatch;
  absl::StatusOr<PublishResult> result =
      PublishCommit(parts_.commit, &content_, received_bytes_).Run();
  if (result.ok()) {
    core_->meters.ObserveCommit(result->durable, stopwatch.Elapsed());
  }
  return result;
}

absl::Status PublishSessionImpl::PlanNeeded() {
  state_->mu.AssertHeld();
  const PublishSpec& spec = content_.spec;
  for (size_t i = 0; i < content_.items.size(); ++i) {
    PublishItem& item = content_.items[i];
    const ObjectId& id = spec.objects[i].id;
    SegmentNode* node = state_->catalog.index().Find(*item.segment, spec.token_ids);
    const StoredObject* object =
        node == nullptr ? nullptr : node->objects[static_cast<size_t>(id.group)];
    if (object == nullptr) {
      item.needed = !spec.objects[i].absent;
      continue;
    }
    const std::vector<uint64_t>& digests = spec.objects[i].slice_digests;
    if (!digests.empty() && digests != object->slice_digests &&
        BitsFollowKeys(content_.model->layout.exactness)) {
      core_->Count(Counter::kNondeterminism);
      return absl::AbortedError(absl::StrCat(
          ObjectText(id), " is stored with other bytes under the same key: nondeterminism"));
    }
    item.object = object;
    state_->objects.Hold(object);
  }
  // Objects that only boundaries need which cannot be completed are not asked for.
  std::vector<bool> useful(content_.items.size(), false);
  for (const std::vector<size_t>& needs : content_.needs) {
    const bool possible = std::all_of(needs.begin(), needs.end(), [&](const size_t i) {
      const PublishItem& item = content_.items[i];
      return item.needed || item.object != nullptr;
    });
    if (!possible) continue;
    for (const size_t i : needs) useful[i] = true;
  }
  uint64_t needed_bytes = 0, needed_objects = 0;
  for (size_t i = 0; i < content_.items.size(); ++i) {
    PublishItem& item = content_.items[i];
    item.needed = item.needed && useful[i];
    if (!item.needed) continue;
    ++needed_objects;
    item.staged.resize(item.layers.size());
    needed_.push_back(static_cast<uint32_t>(i));
    needed_bytes += item.slice_bytes * item.layers.size();
  }
  if (needed_bytes + staged_bytes_ > core_->options.max_staged_bytes) {
    core_->Count(Counter::kPublishesRefusedStaged);
    // Not kResourceExhausted, which asks to come back: it will not fit later either.
    return absl::InvalidArgumentError(absl::StrCat("publish of ", needed_bytes,
                                                   " bytes is over max_staged_bytes, ",
                                                   core_->options.max_staged_bytes));
  }
  // Checked before a byte comes. The tenant's other points may go until the commit, which checks
  // again.
  if (state_->catalog.ledger().FitsBesidePins(spec.tenant, needed_bytes, needed_objects)) {
    return absl::OkStatus();
  }
  core_->Count(Counter::kPublishesRefusedQuota);
  return state_->catalog.ledger().NoRoom(spec.tenant, needed_bytes, needed_objects);
}

PublishSessionImpl::~PublishSessionImpl() {
  if (!committed_ && !timed_out_loading_) {
    core_->Count(Counter::kPublishesAbandoned);
  }
  // Slices that the RAM tier took are counted there; the rest go before their room is given away.
  for (PublishItem& item : content_.items) item.staged.clear();
  parts_.staged->Release(content_.spec.tenant, staged_bytes_);
  StoreLock lock(core_);
  for (PublishItem& item : content_.items) {
    if (item.object != nullptr) state_->objects.Release(item.object);
  }
}

}  // namespace hearth
