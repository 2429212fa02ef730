// StoreFollower: follows a store's watch into a feed, and comes back whenever it ends.
//
// Thread safety: Stop from any thread; Run on one. Ownership: borrows all that it is given.
#ifndef HEARTH_SERVICES_EVENTS_STORE_FOLLOWER_H_
#define HEARTH_SERVICES_EVENTS_STORE_FOLLOWER_H_

#include <grpcpp/client_context.h>

#include <functional>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "services/cli/connection.h"
#include "services/events/event_feed.h"

namespace hearth {

class StoreFollower {
 public:
  // `say` gets a line for people each time that the store is followed, or not any more, and the
  // feed's notices.
  StoreFollower(const PeerFlags& store, EventFeed* feed,
                std::function<void(const std::string&)> say)
      : store_(store), feed_(feed), say_(std::move(say)) {}

  // Returns when stopped, or with the error that no waiting helps against: the caller may not
  // watch, or asks for what is not there.
  absl::Status Run();
  void Stop();

 private:
  // Until the watch ends. `up_to_date`: it came to the end of what it was to tell at first.
  absl::Status Follow(bool* up_to_date);

  const PeerFlags store_;
  EventFeed* const feed_;
  const std::function<void(const std::string&)> say_;
  absl::Notification stopped_;
  absl::Mutex mutex_;
  grpc::ClientContext* watch_ ABSL_GUARDED_BY(mutex_) = nullptr;  // the one that is open
};

}  // namespace hearth

#endif  // HEARTH_SERVICES_EVENTS_STORE_FOLLOWER_H_
