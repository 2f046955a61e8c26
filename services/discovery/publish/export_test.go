package publish

import "time"

// ListsKept makes the publisher look for lists that nobody wants at every time of publishing, and
// withdraw those that nobody has wanted for this long.
func (p *Publisher) ListsKept(keep time.Duration) { p.lists.lookEvery, p.lists.keep = 0, keep }
