#include "services/events/event_feed.h"

#include <algorithm>
#include <cassert>
#include <limits>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "proto/kv_layout.h"

namespace hearth {
namespace {

using Kind = v1::WatchEvent;

bool IsWhole(const v1::ChunkRun& run) {
  const uint32_t chunk_tokens = run.chunk_tokens();
  return chunk_tokens >= kMinChunkTokens && chunk_tokens <= kMaxChunkTokens &&
         run.chunk_ids_size() > 0 &&
         run.token_ids_size() == run.chunk_ids_size() * static_cast<int64_t>(chunk_tokens);
}

// As many as tell fingerprints apart, and --fingerprint takes.
std::string Digits(const std::string& fingerprint) {
  constexpr size_t kDigestBytes = 8;
  return absl::BytesToHexString(fingerprint.substr(0, kDigestBytes));
}

}  // namespace

std::string FiguresText(const FeedFigures& figures) {
  return absl::StrCat(figures.blocks, " blocks of ", figures.points, " restore points; ",
                      figures.left_out, " left out, ", figures.of_others, " of other fingerprints");
}

EventFeed::EventFeed(const EventFeedOptions& options, absl::Time now)
    : options_(options),
      first_number_(static_cast<uint64_t>(absl::ToUnixMicros(now))),
      ledger_(options.max_blocks),
      log_(options.max_batches, options.max_batch_bytes, first_number_) {
  absl::MutexLock lock(&mutex_);
  Publish({AllBlocksCleared{}}, now);
}

bool EventFeed::Take(const v1::WatchEvent& event, absl::Time now) {
  std::vector<KvEvent> events;
  bool begins_anew = false;
  {
    absl::MutexLock lock(&mutex_);
    if (event.kind() == Kind::LOST) {
      place_ = {};
      return false;
    }
    Apply(event, &events);
    // A restore point of which more comes, and a snapshot, are to be told again from their start.
    if (!in_snapshot_ && !open_.has_value()) place_ = {event.incarnation(), event.sequence()};
    Publish(events, now);
    begins_anew = IsForOthers();
    if (begins_anew) {
      has_others_ = false;
      place_ = {};
    }
  }
  if (!events.empty()) wake_();
  return !begins_anew;
}

void EventFeed::BeginWatch() {
  absl::MutexLock lock(&mutex_);
  open_.reset();
  in_snapshot_ = false;
  listed_.clear();
}

void EventFeed::Apply(const v1::WatchEvent& event, std::vector<KvEvent>* events) {
  mutex_.AssertHeld();
  if (event.kind() == Kind::CHUNKS) {
    if (open_.has_value()) Extend(event.chunks(), events);
    return;
  }
  open_.reset();  // it left before all of it was told
  switch (event.kind()) {
    case Kind::START:
      in_snapshot_ = !event.resumed();
      return;
    case Kind::SNAPSHOT:
    case Kind::STORED:
      Begin(event);
      if (open_.has_value()) Extend(event.chunks(), events);
      return;
    case Kind::SNAPSHOT_END:
      if (in_snapshot_) ledger_.Keep(listed_, events);  // a watch that went on lists nothing
      listed_.clear();
      in_snapshot_ = false;
      return;
    case Kind::EVICTED:
    case Kind::DROPPED:
    case Kind::QUARANTINED:
      ledger_.Remove(event.restore_point().restore_point_id(), events);
      return;
    default:
      return;
  }
}

void EventFeed::Begin(const v1::WatchEvent& event) {
  mutex_.AssertHeld();
  const v1::RestorePointInfo& point = event.restore_point();
  if (!event.has_chunks() || !IsOurs(point.fingerprint_digest())) return;
  const v1::ChunkRun& run = event.chunks();
  if (!IsWhole(run) || point.tokens() > kMaxPromptTokens) return;
  OpenPoint open;
  open.blocks.point_id = point.restore_point_id();
  open.blocks.block_tokens = run.chunk_tokens();
  open.chunks = point.tokens() / run.chunk_tokens();
  open.in_snapshot = event.kind() == Kind::SNAPSHOT;
  open_ = std::move(open);
}

void EventFeed::Extend(const v1::ChunkRun& run, std::vector<KvEvent>* events) {
  mutex_.AssertHeld();
  PointBlocks& blocks = open_->blocks;
  if (!IsWhole(run) || run.chunk_tokens() != blocks.block_tokens ||
      run.first_chunk() != blocks.ids.size() ||
      static_cast<uint32_t>(run.chunk_ids_size()) > open_->chunks - run.first_chunk()) {
    ++left_out_;
    open_.reset();
    return;
  }
  blocks.ids.insert(blocks.ids.end(), run.chunk_ids().begin(), run.chunk_ids().end());
  blocks.token_ids.insert(blocks.token_ids.end(), run.token_ids().begin(), run.token_ids().end());
  if (blocks.ids.size() < open_->chunks) return;
  if (!ledger_.Add(blocks, events)) {
    ++left_out_;
  } else if (open_->in_snapshot) {
    listed_.insert(blocks.point_id);
  }
  open_.reset();
}

bool EventFeed::IsForOthers() const {
  mutex_.AssertHeld();
  return options_.fingerprint.empty() && has_others_ && !in_snapshot_ && ledger_.points() == 0;
}

bool EventFeed::IsOurs(const std::string& fingerprint) {
  mutex_.AssertHeld();
  if (fingerprint == fingerprint_) return true;
  const bool decides =
      options_.fingerprint.empty()
          ? ledger_.points() == 0
          : fingerprint_.empty() &&
                absl::StartsWith(absl::BytesToHexString(fingerprint), options_.fingerprint);
  if (decides) {
    if (!fingerprint_.empty()) {
      notice_ = absl::StrCat("no restore point of fingerprint ", Digits(fingerprint_),
                             " is left: reported are those of ", Digits(fingerprint), " now");
    }
    fingerprint_ = fingerprint;
    has_others_ = has_noted_others_ = false;
    return true;
  }
  ++of_others_;
  has_others_ = true;
  if (!in_snapshot_ && !has_noted_others_) {
    notice_ = absl::StrCat("a restore point of fingerprint ", Digits(fingerprint),
                           " is not reported: reported are those of ",
                           fingerprint_.empty() ? options_.fingerprint : Digits(fingerprint_),
                           "; --fingerprint names another");
    has_noted_others_ = true;
  }
  return false;
}

void EventFeed::Publish(const std::vector<KvEvent>& events, absl::Time now) {
  mutex_.AssertHeld();
  for (std::string& payload : EncodeBatches(events, options_.labels, now)) {
    log_.Append(std::move(payload));
  }
}

std::string EventFeed::TakeNotice() {
  absl::MutexLock lock(&mutex_);
  return std::exchange(notice_, "");
}

WatchPlace EventFeed::place() const {
  absl::MutexLock lock(&mutex_);
  return place_;
}

std::vector<KvBatch> EventFeed::From(uint64_t number, size_t most) const {
  absl::MutexLock lock(&mutex_);
  return log_.From(number, most);
}

std::vector<KvBatch> EventFeed::Replay(uint64_t number, absl::Time now) {
  std::vector<KvBatch> batches;
  bool has_new = false;
  {
    absl::MutexLock lock(&mutex_);
    if (number >= log_.first()) return log_.From(number, std::numeric_limits<size_t>::max());
    batches = Everything(now);
    const uint64_t missed = log_.next() - number;
    has_new = batches.size() > missed;
    if (has_new) {
      log_.AppendEmpty(batches.size() - missed, EncodeEmptyBatch(now));
      everything_at_ = log_.next();  // they change nothing
    }
    const uint64_t begin = log_.next() - batches.size();
    assert(begin >= number);
    for (size_t i = 0; i < batches.size(); ++i) batches[i].number = begin + i;
  }
  if (has_new) wake_();
  return batches;
}

std::vector<KvBatch> EventFeed::Everything(absl::Time now) {
  mutex_.AssertHeld();
  std::vector<KvBatch> batches;
  if (everything_at_ == log_.next()) {
    for (const auto& remembered : everything_) batches.push_back({0, remembered.lock()});
    const auto is_gone = [](const KvBatch& batch) { return batch.payload == nullptr; };
    if (std::none_of(batches.begin(), batches.end(), is_gone)) return batches;
    batches.clear();
  }
  std::vector<KvEvent> events = ledger_.Everything();
  events.insert(events.begin(), AllBlocksCleared{});
  everything_.clear();
  everything_at_ = log_.next();
  for (std::string& payload : EncodeBatches(events, options_.labels, now)) {
    batches.push_back({0, std::make_shared<const std::string>(std::move(payload))});
    everything_.emplace_back(batches.back().payload);
  }
  return batches;
}

uint64_t EventFeed::next_number() const {
  absl::MutexLock lock(&mutex_);
  return log_.next();
}

FeedFigures EventFeed::figures() const {
  absl::MutexLock lock(&mutex_);
  return {ledger_.blocks(), ledger_.points(), log_.next() - first_number_, left_out_, of_others_};
}

}  // namespace hearth
