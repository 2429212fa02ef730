// Recognizes chat templates that render chats as chat_template.h does, without running them.
//
// A template is reduced to a form that leaves out what does not change its output: comments, the
// layout of tags, the style of quotes, the words of error messages. The
// SHA-256 of this form is compared with a list. A template that is not on the list may still
// render the same chats; it counts as unknown.
// Thread safety: pure functions.
#ifndef HEARTH_WORKER_TEXT_TEMPLATE_FORM_H_
#define HEARTH_WORKER_TEXT_TEMPLATE_FORM_H_

#include <string>
#include <string_view>

namespace hearth {

// The form of a Jinja template, as transformers reads one (trim_blocks and lstrip_blocks are on).
// Equal forms render every chat equally. A template that cannot be divided into tags, or has raw
// blocks, is its own form.
std::string TemplateForm(std::string_view text);

// Whether the form is on the list: chats of text alone are rendered as RenderChat renders them.
bool RendersAsGemma(std::string_view text);

}  // namespace hearth

#endif  // HEARTH_WORKER_TEXT_TEMPLATE_FORM_H_
