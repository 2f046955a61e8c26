package nostr

// eventOverhead is about how many bytes an event takes beside its text and the headers of its tags
// and of their values.
const eventOverhead, tagOverhead, valueOverhead = 1024, 24, 16

// Memory is about how many bytes of memory an event takes together with its JSON, which may be nil:
// it will be made then. The text is counted twice, as raw JSON and as strings.
func Memory(ev *Event, raw []byte) int64 {
	text, headers := len(ev.Content), 0
	for _, tag := range ev.Tags {
		headers += tagOverhead + valueOverhead*len(tag)
		for _, value := range tag {
			text += len(value)
		}
	}
	return eventOverhead + int64(headers+text+max(text, len(raw)))
}
