package secrets

// keywordIndex finds where any of many keywords begins, after Wu and Manber ("A fast algorithm for
// multi-pattern searching", 1994) with blocks of two bytes: most text is passed over two bytes at a
// time.
type keywordIndex struct {
	step    [1 << 16]uint8 // by the second and third byte of the window; 0: a keyword may begin here
	start   [1 << 16]bool  // by the first and second byte: a keyword begins so
	byStart map[[shortest]byte][]keyword
}

// shortest is the length of the shortest keyword, and of the window.
const shortest = 3

// keyword is how the secrets of some rules begin.
type keyword struct {
	text  string
	rules []int // indices into the rules
}

func newKeywordIndex(keywords []keyword) *keywordIndex {
	x := &keywordIndex{byStart: map[[shortest]byte][]keyword{}}
	for i := range x.step {
		x.step[i] = shortest - 1
	}
	for _, k := range keywords {
		start := [shortest]byte([]byte(k.text[:shortest]))
		x.byStart[start] = append(x.byStart[start], k)
		x.start[pair(start[0], start[1])] = true
		x.step[pair(start[1], start[2])] = 0
		if at := pair(start[0], start[1]); x.step[at] > 1 {
			x.step[at] = 1
		}
	}
	return x
}

func pair(a, b byte) uint16 { return uint16(a)<<8 | uint16(b) }

// each calls found with each keyword in the content that begins at from or later, in order, until
// found returns false.
func (x *keywordIndex) each(content []byte, from int, found func(at int, k keyword) bool) {
	for at := max(from, 0) + shortest - 1; at < len(content); { // the end of the window
		b, c := content[at-1], content[at]
		if step := x.step[pair(b, c)]; step > 0 {
			at += int(step)
			continue
		}
		if a := content[at-2]; x.start[pair(a, b)] {
			begin := at - 2
			for _, k := range x.byStart[[shortest]byte{a, b, c}] {
				if begin+len(k.text) <= len(content) && string(content[begin:begin+len(k.text)]) == k.text && !found(begin, k) {
					return
				}
			}
		}
		at++
	}
}
