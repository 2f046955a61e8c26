package nostr

// HasID reports whether the id of an event is that of what it says, in lower-case hex digits.
func HasID(ev *Event) bool { return ev.CheckID() }

// Signed reports whether the signature of an event is its author's.
func Signed(ev *Event) bool {
	var author [32]byte
	var sig [64]byte
	if !ReadHex(author[:], ev.PubKey) || !ReadHex(sig[:], ev.Sig) {
		return false
	}
	ok, err := ev.CheckSignature()
	return ok && err == nil
}

// ReadHex reads lower-case hex digits that fill dst. It reports whether s is that and no more.
func ReadHex(dst []byte, s string) bool {
	if len(s) != 2*len(dst) {
		return false
	}
	for i := range dst {
		high, low := digit[s[2*i]], digit[s[2*i+1]]
		if high|low > 15 {
			return false
		}
		dst[i] = high<<4 | low
	}
	return true
}

// digit is the value of each lower-case hex digit; 255: none.
var digit = func() (value [256]byte) {
	for i := range value {
		value[i] = 255
	}
	for i, c := range "0123456789abcdef" {
		value[c] = byte(i)
	}
	return value
}()
