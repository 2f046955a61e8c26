package relayread

import "time"

// Hasten makes the pauses before further tries short.
func (r *Reader) Hasten() *Reader {
	r.pause = time.Millisecond
	return r
}
