package wire

func (r *rule) settle(n *node) { n.loose = exact }
func (n *node) guess()         { n.loose = exact }
