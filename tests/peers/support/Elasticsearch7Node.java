import java.util.List;
import java.util.Map;

import org.elasticsearch.common.settings.Settings;
import org.elasticsearch.node.InternalSettingsPreparer;
import org.elasticsearch.node.Node;
import org.elasticsearch.transport.Netty4Plugin;

/**
 * One node of Elasticsearch 7, from jars alone: no distribution, so no security and no scripts.
 * Argument: its folder, with its settings in config/.
 */
public class Elasticsearch7Node extends Node {
    private Elasticsearch7Node(Settings settings) {
        // The protected constructor is the only one that takes plugins without a folder of a distribution.
        super(
            InternalSettingsPreparer.prepareEnvironment(settings, Map.of(), null, () -> "peer"),
            List.of(Netty4Plugin.class),
            true);
    }

    public static void main(String[] arguments) throws Exception {
        new Elasticsearch7Node(Settings.builder().put("path.home", arguments[0]).build()).start();
        Thread.currentThread().join();
    }
}
