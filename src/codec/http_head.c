#include "okv/codec/http.h"

#include <string.h>
#include <strings.h>

#include "okv/codec/json.h"

size_t okv_http_head_size(const void *bytes, size_t size, size_t size_seen)
{
	size_t from = size_seen > 3 ? size_seen - 3 : 0;
	const char *start = bytes;

	if (size < 4)
		return 0;

	const char *end = memmem(start + from, size - from, "\r\n\r\n", 4);

	return end ? (size_t)(end - start) + 4 : 0;
}

struct head_parse {
	struct okv_http_head *head;
	unsigned http_status; /* of a refusal */
	struct okv_reason *reason;
};

static enum okv_status refuse(struct head_parse *parse, unsigned http_status, const char *text)
{
	parse->http_status = http_status;
	return okv_refuse(parse->reason, OKV_ERR_INVALID, "request", "%s", text);
}

/* RFC 9110, 5.6.2. */
static bool is_token_byte(unsigned char byte)
{
	return (byte >= '0' && byte <= '9') || (byte >= 'a' && byte <= 'z') || (byte >= 'A' && byte <= 'Z') ||
	       (byte != 0 && strchr("!#$%&'*+-.^_`|~", byte));
}

static bool is_token(const char *text)
{
	if (*text == '\0')
		return false;
	for (; *text; text++)
		if (!is_token_byte((unsigned char)*text))
			return false;
	return true;
}

/* Ends the line at its CRLF and returns the start of the next one; NULL for a bare CR or LF, or a NUL, in the line. */
static char *cut_line(char *line, const char *end)
{
	char *at = line;

	while (at < end && *at != '\r' && *at != '\n' && *at != '\0')
		at++;
	if (end - at < 2 || at[0] != '\r' || at[1] != '\n')
		return NULL;
	*at = '\0';
	return at + 2;
}

static int hex_value(char digit)
{
	if (digit >= '0' && digit <= '9')
		return digit - '0';
	if (digit >= 'a' && digit <= 'f')
		return digit - 'a' + 10;
	if (digit >= 'A' && digit <= 'F')
		return digit - 'A' + 10;
	return -1;
}

/* In place. False for a broken escape or an encoded NUL. */
static bool decode_percent(char *text)
{
	char *out = text;

	for (; *text; text++) {
		if (*text != '%') {
			*out++ = *text;
			continue;
		}
		int high = hex_value(text[1]), low = high < 0 ? -1 : hex_value(text[2]);
		if (low < 0 || (high | low) == 0)
			return false;
		*out++ = (char)(high * 16 + low);
		text += 2;
	}
	*out = '\0';
	return true;
}

static enum okv_status read_target(struct head_parse *parse, char *target)
{
	if (target[0] != '/')
		return refuse(parse, 400, "the request target does not start with /");
	for (const char *at = target; *at; at++)
		if ((unsigned char)*at <= ' ' || *at == 0x7f)
			return refuse(parse, 400, "the request target holds a control character");

	if (strchr(target, '#'))
		return refuse(parse, 400, "the request target holds a fragment");
	char *query = strchr(target, '?');
	if (query)
		*query++ = '\0';
	if (!decode_percent(target))
		return refuse(parse, 400, "the request target has a broken percent escape");
	parse->head->path = target;
	parse->head->query = query ? query : "";
	return OKV_OK;
}

static enum okv_status read_request_line(struct head_parse *parse, char *line)
{
	char *target = strchr(line, ' ');
	char *version = target ? strchr(target + 1, ' ') : NULL;

	if (!version)
		return refuse(parse, 400, "the request line is not METHOD TARGET VERSION");
	*target++ = '\0';
	*version++ = '\0';
	if (!is_token(line))
		return refuse(parse, 400, "the request method is malformed");
	if (strcmp(version, "HTTP/1.1") != 0 && strcmp(version, "HTTP/1.0") != 0)
		return refuse(parse, strncmp(version, "HTTP/", 5) == 0 ? 505 : 400,
			      "only HTTP/1.0 and HTTP/1.1 are spoken here");
	parse->head->method = line;
	parse->head->is_http_1_0 = version[7] == '0';
	return read_target(parse, target);
}

static enum okv_status read_header_line(struct head_parse *parse, char *line)
{
	struct okv_http_head *head = parse->head;
	char *colon = strchr(line, ':');

	if (head->header_count == OKV_HTTP_HEADERS_MAX)
		return refuse(parse, 431, "more than 100 request headers");
	if (!colon)
		return refuse(parse, 400, "a request header has no colon");
	*colon = '\0';
	if (!is_token(line)) /* also a folded line and a blank before the colon */
		return refuse(parse, 400, "the name of a request header is malformed");

	char *value = colon + 1;
	while (*value == ' ' || *value == '\t')
		value++;
	size_t size = strlen(value);
	while (size > 0 && (value[size - 1] == ' ' || value[size - 1] == '\t'))
		value[--size] = '\0';
	for (size_t i = 0; i < size; i++)
		if (((unsigned char)value[i] < ' ' && value[i] != '\t') || value[i] == 0x7f)
			return refuse(parse, 400, "a request header holds a control character");
	head->header[head->header_count++] = (struct okv_http_header){.name = line, .value = value};
	return OKV_OK;
}

const char *okv_http_find_header(const struct okv_http_head *head, const char *name)
{
	for (unsigned i = 0; i < head->header_count; i++)
		if (strcasecmp(head->header[i].name, name) == 0)
			return head->header[i].value;
	return NULL;
}

static unsigned count_headers(const struct okv_http_head *head, const char *name)
{
	unsigned count = 0;

	for (unsigned i = 0; i < head->header_count; i++)
		count += strcasecmp(head->header[i].name, name) == 0;
	return count;
}

static bool read_length(const char *text, uint64_t *ret_length)
{
	uint64_t length = 0;

	if (*text == '\0' || strlen(text) > 18)
		return false;
	for (; *text; text++) {
		if (*text < '0' || *text > '9')
			return false;
		length = length * 10 + (uint64_t)(*text - '0');
	}
	*ret_length = length;
	return true;
}

/* Where the body ends: the part of HTTP that two readers must not see differently. */
static enum okv_status read_framing(struct head_parse *parse)
{
	struct okv_http_head *head = parse->head;
	const char *length = okv_http_find_header(head, "Content-Length");
	const char *coding = okv_http_find_header(head, "Transfer-Encoding");

	if (count_headers(head, "Content-Length") > 1 || count_headers(head, "Transfer-Encoding") > 1)
		return refuse(parse, 400, "Content-Length or Transfer-Encoding is given twice");
	if (length && coding)
		return refuse(parse, 400, "Content-Length and Transfer-Encoding exclude each other");
	if (coding && head->is_http_1_0)
		return refuse(parse, 400, "Transfer-Encoding does not exist in HTTP/1.0");
	if (coding && strcasecmp(coding, "chunked") != 0)
		return refuse(parse, 501, "the only transfer coding understood is chunked");
	if (length && !read_length(length, &head->content_length))
		return refuse(parse, 400, "Content-Length is not a number");
	head->is_chunked = coding != NULL;
	return OKV_OK;
}

/* True if the comma-separated list in `value` has `word`, without case. */
static bool list_has(const char *value, const char *word)
{
	size_t size = strlen(word);

	while (value && *value) {
		value += strspn(value, " \t,");
		size_t item = strcspn(value, " \t,");

		if (item == size && strncasecmp(value, word, size) == 0)
			return true;
		value += item;
	}
	return false;
}

static enum okv_status read_connection_headers(struct head_parse *parse)
{
	struct okv_http_head *head = parse->head;
	const char *connection = okv_http_find_header(head, "Connection");
	const char *expect = okv_http_find_header(head, "Expect");
	unsigned hosts = count_headers(head, "Host");

	if (hosts > 1 || (hosts == 0 && !head->is_http_1_0))
		return refuse(parse, 400, "an HTTP/1.1 request names its Host once");
	if (expect && strcasecmp(expect, "100-continue") != 0)
		return refuse(parse, 417, "the only expectation understood is 100-continue");
	head->expects_continue = expect && !head->is_http_1_0;
	head->keep_alive = head->is_http_1_0 ? list_has(connection, "keep-alive") : !list_has(connection, "close");
	return OKV_OK;
}

static enum okv_status read_lines(struct head_parse *parse, char *bytes, const char *end)
{
	char *line = bytes, *next = cut_line(line, end);
	enum okv_status status;

	if (!next)
		return refuse(parse, 400, "the request line does not end in CRLF");
	status = read_request_line(parse, line);
	while (status == OKV_OK) {
		line = next;
		next = cut_line(line, end);
		if (!next)
			return refuse(parse, 400, "a request header does not end in CRLF");
		if (*line == '\0')
			break;
		status = read_header_line(parse, line);
	}
	return status;
}

enum okv_status okv_http_read_head(char *bytes, size_t size, struct okv_http_head *ret_head, unsigned *ret_http_status,
				   struct okv_reason *reason)
{
	struct okv_http_head head = {0};
	struct head_parse parse = {.head = &head, .reason = reason};
	enum okv_status status = read_lines(&parse, bytes, bytes + size);

	if (status == OKV_OK)
		status = read_framing(&parse);
	if (status == OKV_OK)
		status = read_connection_headers(&parse);
	if (status == OKV_OK)
		*ret_head = head;
	else
		*ret_http_status = parse.http_status;
	return status;
}

const char *okv_http_status_text(unsigned http_status)
{
	static const struct {
		unsigned http_status;
		const char *text;
	} texts[] = {
		{200, "OK"},
		{204, "No Content"},
		{400, "Bad Request"},
		{403, "Forbidden"},
		{404, "Not Found"},
		{405, "Method Not Allowed"},
		{408, "Request Timeout"},
		{409, "Conflict"},
		{413, "Content Too Large"},
		{415, "Unsupported Media Type"},
		{417, "Expectation Failed"},
		{429, "Too Many Requests"},
		{431, "Request Header Fields Too Large"},
		{500, "Internal Server Error"},
		{501, "Not Implemented"},
		{503, "Service Unavailable"},
		{505, "HTTP Version Not Supported"},
	};

	for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++)
		if (texts[i].http_status == http_status)
			return texts[i].text;
	return "Status";
}

static void write_text_or_null(struct okv_json_writer *writer, const char *key, const char *text)
{
	okv_json_key(writer, key);
	if (text)
		okv_json_write_text(writer, text);
	else
		okv_json_write_null(writer);
}

void okv_http_error_body(struct okv_buf *body, const char *message, const char *type, const char *param,
			 const char *code)
{
	struct okv_json_writer writer = {.buf = body};

	okv_json_begin_object(&writer);
	okv_json_key(&writer, "error");
	okv_json_begin_object(&writer);
	write_text_or_null(&writer, "message", message);
	write_text_or_null(&writer, "type", type);
	write_text_or_null(&writer, "param", param);
	write_text_or_null(&writer, "code", code);
	okv_json_end_object(&writer);
	okv_json_end_object(&writer);
}
