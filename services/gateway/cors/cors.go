// Package cors opens every answer to web pages of any origin, as GRASP-01 asks.
package cors

import "net/http"

// Values of the headers, on all answers.
const (
	origin  = "*"
	methods = "GET, POST, OPTIONS"
	headers = "Content-Type, Accept, Accept-Encoding, Authorization, Content-Encoding, Git-Protocol, Range, X-Requested-With"
)

// Handler sets the headers before next answers, whatever it answers, and answers OPTIONS itself
// with 204.
func Handler(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("Access-Control-Allow-Origin", origin)
		h.Set("Access-Control-Allow-Methods", methods)
		h.Set("Access-Control-Allow-Headers", headers)
		if r.Method == http.MethodOptions {
			w.WriteHeader(http.StatusNoContent)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// Forget takes the headers away from an answer that is passed on from elsewhere: twice they would
// mean nothing to a browser.
func Forget(h http.Header) {
	for _, name := range []string{"Access-Control-Allow-Origin", "Access-Control-Allow-Methods", "Access-Control-Allow-Headers"} {
		h.Del(name)
	}
}

// Lines are the headers as lines of an HTTP/1.1 answer, for one that is written by hand.
func Lines() string {
	return "Access-Control-Allow-Origin: " + origin + "\r\nAccess-Control-Allow-Methods: " + methods +
		"\r\nAccess-Control-Allow-Headers: " + headers + "\r\n"
}
