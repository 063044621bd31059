package main

import (
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"

	"memplan/internal/units"
)

// hundredth is a hundredth of a GiB in bytes.
const hundredth = float64(units.GiB) / 100

// gib is a size in GiB to two digits, aligned to the right.
func gib(b units.Bytes) string { return fmt.Sprintf("%7.2f", b.GiB()) }

// right is a number of hundredths of a GiB as gib writes it.
func right(hundredths int64) string { return fmt.Sprintf("%7.2f", float64(hundredths)/100) }

// roundTogether rounds sizes to hundredths of a GiB so that they add up to
// their rounded sum: those with the largest remainders are raised.
func roundTogether(sizes []units.Bytes) (hundredths []int64, total int64) {
	var sum units.Bytes
	var floors int64
	order := make([]int, len(sizes))
	remainders := make([]float64, len(sizes))
	for i, b := range sizes {
		sum += b
		exact := float64(b) / hundredth
		floor := int64(exact)
		hundredths = append(hundredths, floor)
		remainders[i] = exact - float64(floor)
		floors += floor
		order[i] = i
	}
	total = int64(float64(sum)/hundredth + 0.5)
	slices.SortStableFunc(order, func(a, b int) int {
		switch {
		case remainders[a] > remainders[b]:
			return -1
		case remainders[a] < remainders[b]:
			return 1
		}
		return 0
	})
	for i := range int(min(total-floors, int64(len(order)))) {
		hundredths[order[i]]++
	}
	return hundredths, total
}

// value prints a value of a job: text as it is, all else as JSON.
func value(v any) string {
	if r := reflect.ValueOf(v); r.Kind() == reflect.String { // the job's words are types of their own
		return r.String()
	}
	b, err := json.Marshal(v)
	if err != nil {
		return fmt.Sprint(v)
	}
	return string(b)
}

// shell quotes a word for a shell where it must be.
func shell(word string) string {
	if word != "" && !strings.ContainsAny(word, " \t\n'\"\\$`{}[]()<>|&;*?!#~") {
		return word
	}
	return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
}
