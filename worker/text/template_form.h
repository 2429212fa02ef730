// Recognizes chat templates that render chats as chat_template.h does, without running them.
//
// A template is reduced to a form without the parts that do not change its output: comments, layout
// of tags, style of quotes, texts of errors. The form's SHA-256 is compared with a list. A template
// that is not on the list may render the same chats, but counts as unknown.
// Thread safety: pure functions.
#ifndef HEARTH_WORKER_TEXT_TEMPLATE_FORM_H_
#define HEARTH_WORKER_TEXT_TEMPLATE_FORM_H_

#include <string>
#include <string_view>

namespace hearth {

// Returns the form of a Jinja template, as transformers configures Jinja (trim_blocks and
// lstrip_blocks). Equal forms render every chat equally. A template that cannot be parsed, or has
// raw blocks, is returned unchanged.
std::string TemplateForm(std::string_view text);

// Returns whether the form is on the list: then text-only chats are rendered as RenderChat renders
// them.
bool RendersAsGemma(std::string_view text);

}  // namespace hearth

#endif  // HEARTH_WORKER_TEXT_TEMPLATE_FORM_H_
