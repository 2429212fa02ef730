// The chat page: HTML that talks to the server it came from. It loads nothing else.
#ifndef HEARTH_SERVICES_OPENAI_CHAT_PAGE_H_
#define HEARTH_SERVICES_OPENAI_CHAT_PAGE_H_

namespace hearth {

extern const char kChatPage[];

}  // namespace hearth

#endif  // HEARTH_SERVICES_OPENAI_CHAT_PAGE_H_
