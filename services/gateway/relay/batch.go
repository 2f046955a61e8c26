package relay

import "iter"

// batch is messages of a subscription that are not written yet: stored events, and what ends them.
type batch struct {
	head  []byte // of EVENT messages
	bytes []byte
	ends  []int // of each message
}

// add appends the message of an event.
func (b *batch) add(json []byte) {
	b.bytes = append(append(append(b.bytes, b.head...), json...), ']')
	b.ends = append(b.ends, len(b.bytes))
}

// end appends a message.
func (b *batch) end(message []byte) {
	b.bytes = append(b.bytes, message...)
	b.ends = append(b.ends, len(b.bytes))
}

// empty forgets the messages, and keeps the room.
func (b *batch) empty() { b.bytes, b.ends = b.bytes[:0], b.ends[:0] }

// messages returns the messages one by one. They are valid until the next call of any other method.
func (b *batch) messages() iter.Seq[[]byte] {
	return func(yield func([]byte) bool) {
		begin := 0
		for _, end := range b.ends {
			if !yield(b.bytes[begin:end:end]) {
				return
			}
			begin = end
		}
	}
}
