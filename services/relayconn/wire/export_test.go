package wire

import "time"

// WithGoodbye sets how long the relay may take to answer the end of the connection.
func (c *Conn) WithGoodbye(d time.Duration) *Conn {
	c.bye = d
	return c
}
