#include "services/events/store_follower.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "proto/cache_store.grpc.pb.h"

namespace hearth {
namespace {

constexpr absl::Duration kFirstPause = absl::Milliseconds(250);
constexpr absl::Duration kLongestPause = absl::Seconds(8);

bool IsFinal(const absl::Status& status) {
  return absl::IsPermissionDenied(status) || absl::IsUnauthenticated(status) ||
         absl::IsInvalidArgument(status) || absl::IsUnimplemented(status);
}

}  // namespace

absl::Status StoreFollower::Run() {
  absl::Duration pause = kFirstPause;
  std::string said;  // since it was followed last: once for each reason
  while (!stopped_.HasBeenNotified()) {
    bool up_to_date = false;
    const absl::Status ended = Follow(&up_to_date);
    if (stopped_.HasBeenNotified()) break;
    if (IsFinal(ended)) return ended;
    if (up_to_date) {
      pause = kFirstPause;
      said.clear();
    }
    if (!ended.ok() && ended.message() != said) {
      said = std::string(ended.message());
      say_(absl::StrCat(said, "; trying again"));
    }
    if (stopped_.WaitForNotificationWithTimeout(pause)) break;
    pause = std::min(2 * pause, kLongestPause);
  }
  return absl::OkStatus();
}

absl::Status StoreFollower::Follow(bool* up_to_date) {
  auto channel = Connect(store_);
  if (!channel.ok()) return channel.status();
  const WatchPlace place = feed_->place();
  v1::WatchRequest request;
  request.set_tenant(store_.tenant);
  request.set_since_sequence(place.sequence);
  request.set_incarnation(place.incarnation);
  request.set_with_chunks(true);
  grpc::ClientContext context;
  {
    absl::MutexLock lock(&mutex_);
    if (stopped_.HasBeenNotified()) return absl::OkStatus();
    watch_ = &context;
  }
  feed_->BeginWatch();
  const auto reader = v1::CacheStore::NewStub(*channel)->Watch(&context, request);
  v1::WatchEvent event;
  bool goes_on = true;
  while (goes_on && reader->Read(&event)) {
    goes_on = feed_->Take(event, absl::Now());
    if (const std::string notice = feed_->TakeNotice(); !notice.empty()) say_(notice);
    const bool resumes = event.kind() == v1::WatchEvent::START && event.resumed();
    if (!resumes && event.kind() != v1::WatchEvent::SNAPSHOT_END) continue;
    *up_to_date = true;
    say_(absl::StrCat("following ", store_.address, ": ", FiguresText(feed_->figures())));
  }
  {
    absl::MutexLock lock(&mutex_);
    watch_ = nullptr;
  }
  if (!goes_on) context.TryCancel();
  const grpc::Status status = reader->Finish();
  return goes_on ? RpcFailure(status, store_) : absl::OkStatus();  // it begins anew
}

void StoreFollower::Stop() {
  if (!stopped_.HasBeenNotified()) stopped_.Notify();
  absl::MutexLock lock(&mutex_);
  if (watch_ != nullptr) watch_->TryCancel();
}

}  // namespace hearth
