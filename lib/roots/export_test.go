package roots

// Remembered is how many lists the reader knows, or has known.
func (r *Reader) Remembered() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.known)
}
