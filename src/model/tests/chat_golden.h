/* Made by render_chat_golden.py with jinja2; not written by hand. */
/* clang-format off */
static const struct golden {
	size_t count;
	struct {
		const char *role, *content;
	} message[4];
	const char *rendered;
} goldens[] = {
	{1, {{"user", "Hello"}},
	 "<|im_start|>system\012You are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\012<|im_start|>user\012Hello<|im_end|>\012<|im_start|>assistant\012"},
	{2, {{"system", "Be brief."}, {"user", "Who are you\077"}},
	 "<|im_start|>system\012Be brief.<|im_end|>\012<|im_start|>user\012Who are you\077<|im_end|>\012<|im_start|>assistant\012"},
	{3, {{"user", "1"}, {"assistant", "2"}, {"user", "3"}},
	 "<|im_start|>system\012You are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\012<|im_start|>user\0121<|im_end|>\012<|im_start|>assistant\0122<|im_end|>\012<|im_start|>user\0123<|im_end|>\012<|im_start|>assistant\012"},
	{3, {{"user", " spaces  kept \012\012"}, {"system", "late"}, {"assistant", ""}},
	 "<|im_start|>system\012You are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\012<|im_start|>user\012 spaces  kept \012\012<|im_end|>\012<|im_start|>system\012late<|im_end|>\012<|im_start|>assistant\012<|im_end|>\012<|im_start|>assistant\012"},
	{2, {{"assistant", "\303\251 \344\270\255 \360\237\230\200 the and {{ 'not' }} {% a template %}"}, {"user", "it's 42\015\012"}},
	 "<|im_start|>system\012You are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\012<|im_start|>assistant\012\303\251 \344\270\255 \360\237\230\200 the and {{ 'not' }} {% a template %}<|im_end|>\012<|im_start|>user\012it's 42\015\012<|im_end|>\012<|im_start|>assistant\012"},
	{2, {{"system", ""}, {"user", ""}},
	 "<|im_start|>system\012<|im_end|>\012<|im_start|>user\012<|im_end|>\012<|im_start|>assistant\012"},
};
/* clang-format on */
